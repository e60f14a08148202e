"""Check during a replay whether it can still meet the SLOs of its tiers.

A caller that needs only feasible replays can stop the others early.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simulation.arrays import Array, IntArray
from simulation.compiler import cached_kernel
from simulation.fleet import Tier

MAX_CHECKS = 24  # checks per window; each looks only at new requests
SLACK_S = 600.0  # after the due time of a request, before its outcome is read
ROUNDING = 1e-9  # of shares of requests


class TargetMissed(Exception):
    """A tier certainly misses its target, since too many of its requests are late already."""


@dataclass(eq=False)
class LateCounter:
    """Counts requests that are late for certain, to stop a replay that misses its target.

    A request is late if it passed the TTFT or E2E limit of its tier. A call raises ``TargetMissed``
    only if a tier misses its target whatever happens later. TBT limits are not counted, since TBT
    is known only at the last token. Nor are limits longer than the time between two checks. The
    caller checks both after the replay. ``late_elsewhere [tiers]`` and ``requests_elsewhere
    [tiers]`` count requests of other replays that share the target with this one.
    """

    tiers: Sequence[Tier]
    duration_s: float
    late_elsewhere: IntArray | None = None
    requests_elsewhere: IntArray | None = None
    _next_s: float = field(default=0.0, init=False)
    _checked: int = field(default=0, init=False)
    _late_here: IntArray = field(init=False)
    # By tier, counted when it first matters.
    _requests_by_tier: IntArray | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._late_here = np.zeros(len(self.tiers), np.int64)

    def expect(self, requests_by_tier: IntArray, carried: int) -> None:
        """Set the number of requests of the replay, ``[tiers]``.

        The first ``carried`` records are of an earlier window, and are left out.
        """
        self._checked, self._requests_by_tier = carried, requests_by_tier

    @property
    def late(self) -> IntArray:
        """Return the number of requests of this replay that are late for certain, ``[tiers]``."""
        return self._late_here

    def __call__(self, now: float, requests: Array) -> None:
        """Check the targets at ``now``; ``requests`` are engine records in order of arrival.

        Does nothing unless a check is due. Counts each due request once. Raises ``TargetMissed``.
        """
        if not self._is_check_due(now):
            return
        due_count = self._count_due(now, requests)
        newly_due = requests[self._checked : due_count]
        self._checked = max(due_count, self._checked)
        self._late_here += self._late_by_tier(newly_due)
        # Count all requests only once it matters: it takes a pass over the trace.
        if self._late_here.any():
            if self._requests_by_tier is None:
                self._requests_by_tier = np.bincount(requests["tier"], minlength=len(self.tiers))
            self._raise_if_missed(self._requests_by_tier)

    def check_stream(
        self, now: float, uncounted: Array, counted_late: IntArray, requests_by_tier: IntArray
    ) -> None:
        """Check the targets of a stream at ``now``, as a call does for a trace.

        ``uncounted`` are the records that were not counted yet. ``counted_late [tiers]`` are the
        counted requests that missed a limit. ``requests_by_tier`` are all of the window.
        """
        if not self._is_check_due(now):
            return
        due = uncounted[: self._count_due(now, uncounted)]
        self._late_here = counted_late + self._late_by_tier(due)
        self._raise_if_missed(requests_by_tier)

    def _is_check_due(self, now: float) -> bool:
        """Return whether a check is due at ``now``; if so, set the time of the next one."""
        if now < self._next_s:
            return False
        self._next_s = now + self._check_interval_s
        return True

    @property
    def _check_interval_s(self) -> float:
        """Return the seconds between two checks."""
        return self.duration_s / MAX_CHECKS

    @property
    def _limits(self) -> list[dict[str, float]]:
        """Return the TTFT and E2E limits (s) of each tier that are shorter than the check interval.

        The keys are ``ttft_s`` and ``e2e_s``. A longer limit, or one that is not set, has no key.
        """
        by_tier: list[dict[str, float]] = []
        for tier in self.tiers:
            limits: dict[str, float] = {}
            if tier.ttft_s is not None and tier.ttft_s <= self._check_interval_s:
                limits["ttft_s"] = tier.ttft_s
            if tier.e2e_s is not None and tier.e2e_s <= self._check_interval_s:
                limits["e2e_s"] = tier.e2e_s
            by_tier.append(limits)
        return by_tier

    def _count_due(self, now: float, requests: Array) -> int:
        """Return how many of the first ``requests`` have passed all limits by ``now``.

        Requests are in order of arrival. The longest limit of any tier counts for all, and SLACK_S.
        """
        longest_s = max((max(limits.values(), default=0.0) for limits in self._limits), default=0.0)
        # bisect, because searchsorted of numpy would copy the column.
        return bisect_left(requests["arrival_s"], now - (SLACK_S + longest_s))

    def _late_by_tier(self, due: Array) -> IntArray:
        """Return by tier how many of the requests ``due`` are late."""
        ttft_s = np.array([limits.get("ttft_s", np.inf) for limits in self._limits])
        e2e_s = np.array([limits.get("e2e_s", np.inf) for limits in self._limits])
        late = np.zeros(len(self.tiers), np.int64)
        _count_late(due, ttft_s, e2e_s, late)
        return late

    def _raise_if_missed(self, requests_by_tier: IntArray) -> None:
        """Raise ``TargetMissed`` if a tier misses its target for certain.

        ``requests_by_tier`` are those of this replay.
        """
        if self.requests_elsewhere is not None:
            requests_by_tier = requests_by_tier + self.requests_elsewhere
        late = self._late_here + (0 if self.late_elsewhere is None else self.late_elsewhere)
        name = first_missed_tier(self.tiers, late, requests_by_tier)
        if name is not None:
            raise TargetMissed(name)


def first_missed_tier(
    tiers: Sequence[Tier], late_by_tier: IntArray, requests_by_tier: IntArray
) -> str | None:
    """Return the name of the first tier that misses its target for certain, or None.

    ``late_by_tier`` and ``requests_by_tier`` count the late requests and all requests.
    """
    for tier, late_of_tier, requests in zip(tiers, late_by_tier, requests_by_tier, strict=True):
        if late_of_tier and (requests - late_of_tier) / requests < tier.attainment - ROUNDING:
            return tier.name
    return None


@cached_kernel
def _count_late(requests: Any, ttft_s: Any, e2e_s: Any, late: Any) -> None:
    """Add the late requests to ``late[tier]``.

    ``ttft_s`` and ``e2e_s`` are the limits in seconds, ``[tier]``, on the times from arrival to the
    first and last token; infinite without a limit. A missing token is NaN, which is late.
    """
    for i in range(requests.size):
        record = requests[i]
        ttft_limit_s, e2e_limit_s = ttft_s[record.tier], e2e_s[record.tier]
        # ``not <=`` instead of ``>``: a missing token (NaN) is late.
        in_ttft = record.first_token_s - record.arrival_s <= ttft_limit_s
        in_e2e = record.last_token_s - record.arrival_s <= e2e_limit_s
        if (ttft_limit_s < np.inf and not in_ttft) or (e2e_limit_s < np.inf and not in_e2e):
            late[record.tier] += 1
