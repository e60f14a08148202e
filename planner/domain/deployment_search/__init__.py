"""Search for the deployment that serves a model at the lowest cost."""
