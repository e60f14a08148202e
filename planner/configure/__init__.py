"""Which deployment serves a model at least cost: what is searched, and the answer."""
