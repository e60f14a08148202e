"""Sums over requests that do not grow with their number and add up in any order.

Latencies are counted in buckets, ``STEPS`` per doubling. A percentile is within the share ``ERROR``
of the requests at its rank (within 0.13 ms for the smallest latencies). Means are of whole
microseconds. All counts are whole numbers. So tallies of the parts of a trace add up to the same
bytes as one tally of all. The layout is that of HdrHistogram (Tene, 2014).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from simulation.arrays import Array, BoolArray, FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.metrics import Percentiles
from simulation.results import NOT_DUE, REASONS

STEP_BITS = 7
STEPS = 1 << STEP_BITS
ERROR = 0.5 / STEPS  # largest relative error of a reported latency
SHIFT = 52 - STEP_BITS  # bits of a double that its bucket number leaves out
_LEAST, _MOST = 2.0**-13, 2.0**24  # seconds: 0.12 ms to half a year


def _bucket_numbers(seconds: FloatArray | float) -> IntArray:
    """Return bucket numbers of ``seconds`` >= 0 in order of size, ``STEPS`` per doubling."""
    # Doubles of at least 0 sort like their bits. The shift keeps the exponent and STEP_BITS more.
    return np.asarray(np.asarray(seconds, np.float64).view(np.int64) >> SHIFT)


FIRST = int(_bucket_numbers(_LEAST))
BUCKETS = int(_bucket_numbers(_MOST)) - FIRST
_EDGES = np.asarray((FIRST + np.arange(BUCKETS + 1)) << SHIFT).view(np.float64)
_MIDDLES_S = 0.5 * (_EDGES[:-1] + _EDGES[1:])
MOST_GROUPS = 5_000  # most groups (a model, home region and tier), 120 kB each
LATENCIES = ("ttft_s", "tbt_s", "e2e_s")


class Tally(NamedTuple):
    """Sums over requests by group: the requests of a model, home region and tier.

    Groups are numbered as ``[model, region, tier]`` of the trace, flattened. ``count_requests``
    adds to a tally.
    """

    outcomes: IntArray  # [group, 4] requests by outcome: results.COMPLETED to NOT_DUE
    met: IntArray  # [group] requests within every limit of the tier
    tokens: IntArray  # [group, 2] input and output tokens of completed requests
    in_time: IntArray  # [group] input and output tokens of requests within every limit
    known: IntArray  # [group, 3] requests with a TTFT, TBT, E2E
    micros: IntArray  # [group, 3] sum of their microseconds
    # [group, 3, BUCKETS] requests by latency bucket; [group, 0, ...]: not counted
    buckets: IntArray
    # [hour, tier, 2] by hour of arrival: requests due, and requests due within every limit
    hours: IntArray
    reasons: IntArray  # [REASONS] rejected requests
    served: FloatArray  # [pool, 4] sums of Replay.attention over requests of a pool ...
    asked: FloatArray  # ... and [group, 4] over all requests
    last_s: FloatArray  # [1] time of the last token

    @classmethod
    def empty(
        cls, groups: int, tiers: int, hours: int, pools: int, *, latencies: bool = True
    ) -> Self:
        """Return an empty tally for these numbers of groups, tiers, hours and pools.

        Without ``latencies`` it counts no latencies. With them, it raises ``SimulationError`` for
        more than MOST_GROUPS groups.
        """
        if latencies and groups > MOST_GROUPS:
            raise SimulationError(
                f"The trace has {groups:,} groups of a model, a home region and a tier, and "
                f"{MOST_GROUPS:,} are possible in a stream. Use fewer."
            )
        counts: Any = partial(np.zeros, dtype=np.int64)
        return cls(
            outcomes=counts((groups, 4)),
            met=counts(groups),
            tokens=counts((groups, 2)),
            in_time=counts(groups),
            known=counts((groups, len(LATENCIES))),
            micros=counts((groups, len(LATENCIES))),
            buckets=counts((groups, len(LATENCIES) if latencies else 0, BUCKETS)),
            hours=counts((hours, tiers, 2)),
            reasons=counts(len(REASONS)),
            served=np.zeros((pools, 4)),
            asked=np.zeros((groups, 4)),
            last_s=np.zeros(1),
        )

    def plus(self, other: Tally) -> Tally:
        """Return the sum of two tallies, which covers the requests of both."""
        arrays: Iterable[Array] = self
        sums = Tally(*(mine + theirs for mine, theirs in zip(arrays, other, strict=True)))
        return sums._replace(last_s=np.maximum(self.last_s, other.last_s))

    def missed_by_tier(self, tiers: int) -> IntArray:
        """Return the number of requests of each tier that were rejected or late, ``[tier]``.

        ``tiers`` is the number of tiers. Requests not yet due do not count.
        """
        due = self.outcomes.sum(axis=1) - self.outcomes[:, NOT_DUE]
        missed: IntArray = (due - self.met).reshape(-1, tiers).sum(axis=0)
        return missed

    def percentiles(self, groups: Array | BoolArray, latency: int) -> Percentiles:
        """Return the mean and percentiles in ms of a latency, over the requests of all ``groups``.

        ``groups`` are indices or a mask of groups; ``latency`` is an index into LATENCIES.
        """
        count = int(self.known[groups, latency].sum())
        if not count:
            return Percentiles(None, None, None, None)
        cumulative = np.cumsum(self.buckets[groups, latency].sum(axis=0))
        mean_ms = int(self.micros[groups, latency].sum()) / count / 1e3
        quantiles_ms = []
        for share in (0.5, 0.95, 0.99):
            # Linear between the values at the two ranks next to ``rank``, counted from 0. A value
            # is the middle of its bucket: the first with more values up to its end than the rank.
            rank = share * (count - 1)
            ranks = [int(rank), int(rank) + (rank > int(rank))]
            low_s, high_s = _MIDDLES_S[np.searchsorted(cumulative, ranks, side="right")]
            quantiles_ms.append(float(low_s + (high_s - low_s) * (rank - int(rank))) * 1e3)
        return Percentiles(mean_ms, *quantiles_ms)
