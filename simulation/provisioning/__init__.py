"""Provisioning below the replica: how many replicas of each operator, in what batch, where."""
