"""Scaling policies, one per file, behind the protocol in ``simulation.policy``."""
