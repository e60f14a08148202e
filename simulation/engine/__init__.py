"""The compiled hot path: event loop, batching and KV memory.

This file imports nothing, to avoid a cycle: the fleet names the schedulers, and the engine's run
takes a fleet.
"""
