"""Requests and a fleet in, what would have happened out. Pure: no Django, no forecasting."""
