"""The demo: a synthetic week of a synthetic fleet, drawn from published statistics. No Django."""
