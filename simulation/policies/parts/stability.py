"""What keeps a controller from flapping (methods.md D4; HeteroScale, section 3.6).

The source names the means and gives no values; the defaults are ours: the tolerance and the wait
before scaling in are those of Kubernetes' autoscaler.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from simulation.arrays import FloatArray

OUT, STAY, IN = 1, 0, -1
ROUNDING = 1e-9  # a product that is whole but for its last bits counts as whole


@dataclass(frozen=True, slots=True)
class Stability:
    """Hysteresis (``theta_out``, ``theta_in``: how far the wanted size must be off, as a share of
    the present one), cooling (seconds since the last action, by direction), dampening (the share
    of the difference that one action covers) and soft scale-in (``soft_s``, see ``Actions``)."""

    theta_out: float = 0.1
    theta_in: float = 0.2
    cool_out_s: float = 60.0
    cool_in_s: float = 300.0
    damping: float = 1.0
    soft_s: float = 0.0


class Cooling:
    """When each service last acted."""

    def __init__(self, services: int, stability: Stability) -> None:
        self._last = np.full(services, -np.inf)
        self._stability = stability

    def allows(self, i: int, direction: int, time_s: float) -> bool:
        """Scale-out waits for ``cool_out_s`` since the last action, scale-in for ``cool_in_s``;
        at no other time may a service of ``direction`` 0 act."""
        if direction == STAY:
            return False
        wait = self._stability.cool_out_s if direction == OUT else self._stability.cool_in_s
        return bool(time_s - self._last[i] >= wait)

    def acted(self, i: int, time_s: float) -> None:
        self._last[i] = time_s

    def share(self, other: Cooling) -> None:
        """From now on one record of actions for both, each with its own waits."""
        self._last = other._last

    @property
    def last_s(self) -> FloatArray:
        """When each service last acted, ``[services]``; -inf for never."""
        return self._last


def direction_of(expected: float, present: int, stability: Stability) -> int:
    """Algorithm 2's test of ``expected / present`` against both thresholds; with nothing present,
    any need is a reason to grow."""
    if present == 0:
        return OUT if expected > 0 else STAY
    ratio = expected / present
    if ratio > 1 + stability.theta_out + ROUNDING:
        return OUT
    return IN if ratio < 1 - stability.theta_in - ROUNDING else STAY


def damped(expected: float, present: int, damping: float) -> int:
    """Whole instances ``damping`` of the way from ``present`` to ``expected``: never fewer than
    needed, and at least one step in the direction where that is not nothing."""
    reached = ceil(present + damping * (expected - present) - ROUNDING)
    if expected < present and reached == present and ceil(expected - ROUNDING) < present:
        return present - 1
    return reached


def stepped(present: int, factor: float) -> int:
    """``present`` times ``factor``, whole: up where it grows, down where it shrinks."""
    exact = present * factor
    return ceil(exact - ROUNDING) if factor >= 1 else floor(exact + ROUNDING)
