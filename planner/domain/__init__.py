"""Run studies from end to end: traffic, forecast, plan, replay and comparison.

There is no Django and no database here. The inputs are a Scenario and the folders of its traces.
The outputs are typed values and tables, the same for browser, API and command line.
"""
