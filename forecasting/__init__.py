"""Demand series in, forecasts out. Pure: no Django, no simulation, no files, no clock."""
