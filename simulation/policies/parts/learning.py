"""What instances were seen to carry within their limits, beside what they were sized for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simulation.arrays import BoolArray, FloatArray
from simulation.fleet import Fleet, Pool


@dataclass(frozen=True, slots=True, eq=False)
class Strain:
    """Of the instances ready at one look, ``[pools]``."""

    full: FloatArray  # what they served, of what they were sized for
    held: FloatArray  # requests in flight, of what they hold within their limits
    late: BoolArray  # more came late than the tiers allow


class Learned:
    """What was too much, of what instances were sized for, ``[pools]``; infinite where nothing was.

    Sizes rest on lengths known before. Longer answers hold their memory for longer, each token of
    theirs reads more of it, and an instance serves fewer of them within its limits than it was
    sized for: it comes late, with more in flight than it should hold, though nothing piles up. What
    it served then was too much, until ``tolerance`` below as much is served in time.
    """

    def __init__(self, pools: int, tolerance: float) -> None:
        self._tolerance = tolerance
        self.too_much: FloatArray = np.full(pools, np.inf)
        self.anything = False  # whether it is finite anywhere

    def see(self, while_: Sequence[Strain], settled: BoolArray) -> None:
        """The looks of a while; only pools that are ``settled`` (nothing starts, no pile for long)
        show what they carry, else what is late was late before it got there."""
        late = np.array([look.late for look in while_])
        if not self.anything and not late.any():  # as at most looks
            return
        full = np.mean([look.full for look in while_], axis=0)
        held = np.min([look.held for look in while_], axis=0)
        over = settled & late.all(axis=0) & (held > 1 + self._tolerance) & (full > 0)
        fine = ~late.any(axis=0)
        known = np.where(over, np.minimum(self.too_much, full), self.too_much)
        in_time = np.maximum(known, full * (1 + self._tolerance))
        self.too_much = np.asarray(np.where(fine, in_time, known))
        self.anything = bool(np.isfinite(self.too_much).any())

    def needed(self, served: FloatArray) -> FloatArray:
        """``served``, and ``tolerance`` more, in what instances were sized for; 0 where they do
        what they were sized for."""
        return np.asarray(served * (1 + self._tolerance) / self.too_much)


def allowed_late(fleet: Fleet, pool: Pool) -> float:
    """Share of late requests that the strictest tier of a pool allows, of those that wait for
    nobody; infinite where none does."""
    takes = [1 - t.attainment for t in fleet.tiers if not t.deferrable and pool.takes(t.name)]
    return min(takes, default=np.inf)
