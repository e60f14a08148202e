"""Errors of simulation."""


class SimulationError(ValueError):
    """Inputs that cannot be simulated; the message names the field and the remedy."""


class InvariantViolated(AssertionError):
    """A violated check of ``simulation.invariants``: a bug in the engine, never bad input."""
