"""The seeds' figures beside ours, on the nearest public traces: one experiment per file."""
