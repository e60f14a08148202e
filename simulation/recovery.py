"""Whether a replay can still meet its tiers, told while it runs: one that cannot any more need not
be played to its end by whoever asks for nothing else."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from simulation.arrays import Array, IntArray
from simulation.fleet import Tier

LOOKS = 24  # in the window: what a look finds is not looked at again
SLACK_S = 600.0  # after a request was due, before what came of it is read
CERTAIN = 1e-9  # of shares of requests: what rounding might still tell otherwise


class BeyondRecovery(Exception):
    """More requests of a tier are late than it may miss of all that come."""


@dataclass(eq=False)
class Recovery:
    """Counts requests without their first or last token when a limit of their ``tiers`` had passed.
    Whatever still happens they are late, so it raises only where the tier is missed for certain;
    limits on the gap between tokens, and those that nobody waits out in the window, are left to
    the end. ``late_beside`` and ``all_beside``, by tier, count what is replayed by itself and
    judged together with it."""

    tiers: Sequence[Tier]
    duration_s: float
    late_beside: IntArray | None = None
    all_beside: IntArray | None = None
    _next_s: float = field(default=0.0, init=False)
    _read: int = field(default=0, init=False)
    _late: IntArray = field(init=False)
    _all: IntArray | None = field(
        default=None, init=False
    )  # by tier, counted when it first matters

    def __post_init__(self) -> None:
        self._late = np.zeros(len(self.tiers), np.int64)

    @property
    def late(self) -> IntArray:
        """By tier, of its own requests, those that are for certain."""
        return self._late

    def __call__(self, now: float, requests: Array) -> None:
        """``requests``: all of the window, as engine records in order of arrival."""
        if not self._looks(now):
            return
        end = self._due(now, requests)
        seen, self._read = requests[self._read : end], max(end, self._read)
        self._late += self._overdue(seen)
        if self._late.any():
            if self._all is None:
                self._all = np.bincount(requests["tier"], minlength=len(self.tiers))
                if self.all_beside is not None:
                    self._all += self.all_beside
            self._judge(self._all)

    def of_stream(self, now: float, held: Array, late: IntArray, coming: IntArray) -> None:
        """The same of a stream: ``held`` are those that are not told of yet, ``late`` by tier those
        told of that missed a limit, and ``coming`` all of the window."""
        if not self._looks(now):
            return
        self._late = late + self._overdue(held[: self._due(now, held)])
        self._judge(coming if self.all_beside is None else coming + self.all_beside)

    def _looks(self, now: float) -> bool:
        if now < self._next_s:
            return False
        self._next_s = now + self._step_s
        return True

    @property
    def _step_s(self) -> float:
        return self.duration_s / LOOKS

    @property
    def _limits(self) -> list[dict[str, float]]:
        """By tier, those that are waited out between two looks."""
        return [
            {
                token: limit
                for token, limit in (("first", tier.ttft_s), ("last", tier.e2e_s))
                if limit is not None and limit <= self._step_s
            }
            for tier in self.tiers
        ]

    def _due(self, now: float, requests: Array) -> int:
        """How many of them came so long ago that what came of them is known."""
        most = max((max(its.values(), default=0.0) for its in self._limits), default=0.0)
        # numpy's would copy the column
        return bisect_left(requests["arrival"], now - (SLACK_S + most))

    def _overdue(self, seen: Array) -> IntArray:
        """By tier, how many of them are late."""
        limits = self._limits
        tiers, arrival = seen["tier"].astype(np.int64), seen["arrival"].copy()
        late = np.zeros(len(seen), np.bool_)
        for token in ("first", "last"):
            within = np.array([its.get(token, np.inf) for its in limits])[tiers]
            if np.isfinite(within).any():  # not there yet: NaN
                late |= ~(seen[token] - arrival <= within) & (within < np.inf)
        return np.bincount(tiers, late, len(self.tiers)).astype(np.int64)

    def _judge(self, count: IntArray) -> None:
        every_late = self._late if self.late_beside is None else self._late + self.late_beside
        if (name := beyond(self.tiers, every_late, count)) is not None:
            raise BeyondRecovery(name)


def beyond(tiers: Sequence[Tier], late: IntArray, count: IntArray) -> str | None:
    """The first tier that so many ``late`` ones of ``count`` miss for certain, where there is
    any."""
    for tier, its_late, of in zip(tiers, late, count, strict=True):
        if its_late and (of - its_late) / of < tier.attainment - CERTAIN:
            return tier.name
    return None
