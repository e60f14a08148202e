"""Search the cheapest deployment of a model: candidates, their speed, and their ranking."""
