"""The demo: a made-up week of a made-up fleet, drawn from published statistics. No Django."""
