"""The compiled hot path: event loop, batching and KV memory.

Arguments of compiled functions: ``state`` is the ``State`` of the simulation, ``t`` the time in
simulated seconds, ``slot`` the index of an instance, ``r`` of a request, ``p`` of a pool, and ``q``
of a queue of an instance (or of another pool). A *run* of an instance is a series of iterations
with an unchanged batch, which one event ends.

This file imports nothing, to avoid a cycle: the fleet names the schedulers, and the engine's run
takes a fleet.
"""
