"""The event loop, batching and KV memory: the compiled hot path.

Nothing is imported here: the fleet names the schedulers, and the engine's run takes a fleet.
"""
