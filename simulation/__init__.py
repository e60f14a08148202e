"""Simulation of a fleet that serves requests. Pure: no Django, no forecasting."""
