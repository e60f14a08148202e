"""The event loop, batching and KV memory: the compiled hot path."""

from simulation.engine.run import simulate
from simulation.engine.warm import warm_up

__all__ = ["simulate", "warm_up"]
