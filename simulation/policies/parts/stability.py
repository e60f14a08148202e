"""Hysteresis, cooling and damping of a controller (methods.md D4; HeteroScale, section 3.6).

The source gives no values. Tolerance and wait before scale-in are those of Kubernetes' autoscaler;
the other defaults are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from simulation.arrays import FloatArray

OUT, STAY, IN = 1, 0, -1
PILED_UP = 2.0  # requests are piled up beyond this multiple of those that instances hold at target
ROUNDING = 1e-9  # tolerance of products that should be whole numbers


@dataclass(frozen=True, slots=True)
class Stability:
    """Settings that keep a controller from oscillating.

    ``theta_out`` and ``theta_in`` are the differences, as shares of the present size, that trigger
    scale-out and scale-in. ``cool_out_s`` and ``cool_in_s`` are the least seconds from the last
    change to scale-out and scale-in. ``damping`` is the share of the difference that one change
    covers. ``soft_s`` is the time of soft scale-in (see ``Actions``).
    """

    theta_out: float = 0.1
    theta_in: float = 0.2
    cool_out_s: float = 60.0
    cool_in_s: float = 300.0
    damping: float = 1.0
    soft_s: float = 0.0


class Cooldowns:
    """The time of the last change of each service, and the cooldowns after it."""

    def __init__(self, services: int, stability: Stability) -> None:
        self.last_s: FloatArray = np.full(services, -np.inf)  # [services] -inf: never
        self._stability = stability

    def allows(self, i: int, direction: int, time_s: float) -> bool:
        """Return whether service ``i`` may change in ``direction`` at ``time_s``."""
        if direction == STAY:
            return False
        wait_s = self._stability.cool_out_s if direction == OUT else self._stability.cool_in_s
        return bool(time_s - self.last_s[i] >= wait_s)

    def record_change(self, i: int, time_s: float) -> None:
        """Record that service ``i`` changed at ``time_s``."""
        self.last_s[i] = time_s


def direction_of(expected: float, present: int, stability: Stability) -> int:
    """Return OUT, STAY or IN for ``expected`` instances instead of the ``present`` ones.

    As in Algorithm 2, OUT needs a ratio expected / present above 1 + ``theta_out``, and IN one
    below 1 - ``theta_in``. With no instance present, any expected instance means OUT.
    """
    if present == 0:
        return OUT if expected > 0 else STAY
    ratio = expected / present
    if ratio > 1 + stability.theta_out + ROUNDING:
        return OUT
    return IN if ratio < 1 - stability.theta_in - ROUNDING else STAY


def damp_change(expected: float, present: int, damping: float) -> int:
    """Return ``present`` instances plus a share ``damping`` of the change to ``expected``.

    The result is rounded up. If ``expected`` is below ``present``, at least one is removed.
    """
    reached = ceil(present + damping * (expected - present) - ROUNDING)
    if expected < present and reached == present and ceil(expected - ROUNDING) < present:
        return present - 1
    return reached


def scale_count(present: int, factor: float) -> int:
    """Return ``present`` times ``factor``, rounded away from ``present``."""
    exact = present * factor
    return ceil(exact - ROUNDING) if factor >= 1 else floor(exact + ROUNDING)
