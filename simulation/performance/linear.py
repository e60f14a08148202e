"""The linear performance profile: iteration time from batch size and prefill tokens."""

from dataclasses import dataclass

import numpy as np

from simulation.errors import SimulationError
from simulation.performance.curves import Curve, linear
from simulation.performance.profile import Check
from simulation.performance.specs import Phase, Provenance


@dataclass(frozen=True, slots=True)
class LinearProfile:
    """Iteration latency of one model on one GPU arrangement (methods.md C1).

    An iteration that decodes ``b`` sequences and prefills ``p`` tokens takes

        T(b, p) = max(alpha if b > 0, gamma if p > 0) + beta * b + delta * p      [seconds]

    As in C1, a pure decode iteration takes ITL = alpha + beta b. A pure prefill takes
    gamma + delta p. A mixed iteration reads the weights once, so it has the larger of the two
    constants (modelled).
    """

    model: str
    gpu: str
    tp: int  # GPUs of one instance
    alpha_s: float
    beta_s: float  # per sequence in the batch
    gamma_s: float
    delta_s: float  # per prefill token
    max_batch: int  # sequences
    max_batch_tokens: int  # prefill tokens + decodes of one iteration (chunked prefill budget)
    kv_capacity_tokens: int
    provenance: Provenance
    checks: tuple[Check, ...] = ()
    # Largest sizes among the rows of the fit: batch, prefill tokens of an iteration, and context of
    # a decoding sequence in tokens.
    fitted_decodes: float = np.inf
    fitted_prefill_tokens: float = np.inf
    fitted_context: float = np.inf
    spread: float = 0.0  # of the modelled part, see ``Profile``; 0 if nothing is modelled
    start_s: float = 0.0  # see ``Profile``
    phases: tuple[Phase, Phase] | None = None  # prefill and decode, if their origins differ

    def __post_init__(self) -> None:
        for name in ("alpha_s", "beta_s", "gamma_s", "delta_s"):
            if not getattr(self, name) >= 0:
                raise SimulationError(f"Profile {self.model} on {self.gpu}: {name} must be >= 0.")
        for name in ("tp", "max_batch", "max_batch_tokens", "kv_capacity_tokens"):
            if getattr(self, name) < 1:
                raise SimulationError(f"Profile {self.model} on {self.gpu}: {name} must be >= 1.")

    @property
    def kind(self) -> str:
        return "linear"

    @property
    def curve(self) -> Curve:
        largest = (self.fitted_decodes, self.fitted_prefill_tokens, self.fitted_context)
        return linear(self.alpha_s, self.beta_s, self.gamma_s, self.delta_s, *largest)
