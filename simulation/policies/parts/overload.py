"""Loads that instances failed to serve within their limits, below the capacity planned for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import BoolArray, FloatArray
from simulation.fleet import Fleet, Pool


@dataclass(frozen=True, slots=True, eq=False)
class InstanceLoad:
    """Load of the instances that are ready at one decision, ``[pools]``."""

    full: FloatArray  # served load over planned capacity
    held: FloatArray  # requests in flight over those that fit within the limits
    late: BoolArray  # more requests were late than the tiers allow


class OverloadMemory:
    """The load that was too much, as a share of the planned capacity, ``[pools]``.

    It is infinite until a load was too much. Planned capacity rests on the lengths of earlier
    requests. Longer outputs hold memory for longer and each of their tokens reads more of it, so
    that an instance serves fewer requests within its limits: requests are late and too many are in
    flight, though none wait. That load was too much, until a load that is ``tolerance`` below it is
    served in time.
    """

    def __init__(self, pools: int, tolerance: float) -> None:
        self._tolerance = tolerance
        self.too_much: FloatArray = np.full(pools, np.inf)
        self.anything = False  # whether a load was too much in any pool

    def observe(self, interval: Sequence[InstanceLoad], settled: BoolArray) -> None:
        """Add the decisions of an interval.

        Only ``settled`` pools count: no instance starts there, and no requests piled up lately.
        Elsewhere requests may be late for an earlier reason.
        """
        late = np.array([look.late for look in interval])
        if not self.anything and not late.any():  # the usual case
            return
        full = np.mean([look.full for look in interval], axis=0)
        held = np.min([look.held for look in interval], axis=0)
        over = settled & late.all(axis=0) & (held > 1 + self._tolerance) & (full > 0)
        fine = ~late.any(axis=0)
        lowest_overload = np.where(over, np.minimum(self.too_much, full), self.too_much)
        in_time = np.maximum(lowest_overload, full * (1 + self._tolerance))
        self.too_much = np.asarray(np.where(fine, in_time, lowest_overload))
        self.anything = bool(np.isfinite(self.too_much).any())

    def needed(self, served: FloatArray) -> FloatArray:
        """Return the instances for the load ``served``, with ``tolerance``, in planned capacity.

        0 for pools that never had too much.
        """
        return np.asarray(served * (1 + self._tolerance) / self.too_much)


def allowed_late_share(fleet: Fleet, pool: Pool) -> float:
    """Return the share of late requests that the strictest tier of a pool allows.

    Deferrable tiers do not count; infinite if there is no other.
    """
    takes = [1 - t.attainment for t in fleet.tiers if not t.deferrable and pool.takes(t.name)]
    return min(takes, default=np.inf)
