"""Provision below the replica: replicas, batch size and devices of each operator."""
