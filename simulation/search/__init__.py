"""Which deployment serves a model at least cost: candidates, how fast they are, and who is best."""
