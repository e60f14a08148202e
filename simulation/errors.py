"""Expected outcomes of simulation, each one sentence that says what to do."""


class SimulationError(ValueError):
    """The inputs cannot be simulated; the message names the field and the remedy."""


class InvariantViolated(AssertionError):
    """A law of ``simulation.invariants`` does not hold: a bug in the engine, never bad input."""
