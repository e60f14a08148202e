"""A study from end to end, composed of the pure cores: traffic, forecast, plan, replay, compare.

No Django and no database here: a Scenario and the folders of its traces go in, typed values and
tables come out, the same for browser, API and command line.
"""
