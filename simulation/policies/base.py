"""The protocol of every scaling policy: an observation in, target instance counts out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from simulation.fleet import Fleet

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """What a policy may see at a control instant; every array has shape ``[pools]``."""

    time_s: float  # seconds since the start of the simulation
    ready: IntArray  # instances serving
    starting: IntArray  # asked for, not yet serving
    draining: IntArray  # finishing their requests, taking no new ones
    utilisation: FloatArray  # effective memory: KV tokens in use over KV tokens of ready instances
    waiting: IntArray  # requests routed to the pool and not yet in a batch
    input_tps: FloatArray  # input tokens per second that arrived since the last instant


class ScalingPolicy(Protocol):
    """Called every ``interval_s``; holds its own state, told to start afresh by ``reset``."""

    @property
    def name(self) -> str: ...

    @property
    def interval_s(self) -> float: ...

    def reset(self, fleet: Fleet) -> IntArray:
        """Forget everything; return the instances wanted ready at time 0, shape ``[pools]``."""
        ...

    def decide(self, observation: Observation) -> IntArray:
        """Instances wanted per pool (ready + starting), shape ``[pools]``; the engine clips it to
        the pool's minimum and maximum."""
        ...
