"""Provisioning below the replica: how near to the optimum, how fast, and what it saves."""
