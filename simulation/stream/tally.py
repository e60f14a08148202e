"""Sums over requests that do not grow with their number and add up in any order.

Latencies are counted in buckets, ``STEPS`` per doubling. A percentile is within the share ``ERROR``
of the requests at its rank (within 0.13 ms for the smallest latencies). Means are of whole
microseconds. All counts are whole numbers. So tallies of the parts of a trace add up to the same
bytes as one tally of all. The layout is that of HdrHistogram (Tene, 2014).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from simulation.arrays import Array, BoolArray, FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import HOUR_S, Tier
from simulation.metrics import Percentiles, in_time
from simulation.results import COMPLETED, NOT_DUE, REASONS, RequestLog, attention_terms
from simulation.trace import Trace

STEP_BITS = 7
STEPS = 1 << STEP_BITS
ERROR = 0.5 / STEPS  # largest relative error of a reported latency
_SHIFT = 52 - STEP_BITS  # of the bits of a double
_LEAST, _MOST = 2.0**-13, 2.0**24  # seconds: 0.12 ms to half a year


def _bucket_numbers(seconds: FloatArray | float) -> IntArray:
    """Return bucket numbers of ``seconds`` >= 0 in order of size, ``STEPS`` per doubling."""
    # Doubles of at least 0 sort like their bits. The shift keeps the exponent and STEP_BITS more.
    return np.asarray(np.asarray(seconds, np.float64).view(np.int64) >> _SHIFT)


_FIRST = int(_bucket_numbers(_LEAST))
BUCKETS = int(_bucket_numbers(_MOST)) - _FIRST
_EDGES = np.asarray((_FIRST + np.arange(BUCKETS + 1)) << _SHIFT).view(np.float64)
_MIDDLES_S = 0.5 * (_EDGES[:-1] + _EDGES[1:])
MOST_GROUPS = 5_000  # of model, home region and tier, 120 kB each
LATENCIES = ("ttft_s", "tbt_s", "e2e_s")


@dataclass(slots=True, eq=False)
class Tally:
    """Sums over requests by group, a model, home region and tier.

    ``G`` is the number of groups, ``[models, regions, tiers]`` of the trace flattened. ``P`` is the
    number of pools of the fleet, ``T`` that of tiers.
    """

    outcomes: IntArray  # [G, 4]: by results.COMPLETED to NOT_DUE
    met: IntArray  # [G]: requests within every limit of the tier
    tokens: IntArray  # [G, 2]: input and output tokens of completed requests
    in_time: IntArray  # [G]: input and output tokens of requests within every limit
    known: IntArray  # [G, 3]: requests with a TTFT, TBT, E2E
    micros: IntArray  # [G, 3]: sum of their microseconds
    buckets: IntArray  # [G, 3, BUCKETS]: requests by latency bucket
    # [hours, T, 2]: by hour of arrival, requests due and requests due within every limit
    hours: IntArray
    reasons: IntArray  # [REASONS]
    served: FloatArray  # [P, 4]: sums of results.attention_terms over requests of a pool ...
    asked: FloatArray  # ... and [G, 4] over all requests
    last_s: FloatArray  # [1]: time of the last token

    @classmethod
    def empty(cls, groups: int, tiers: int, hours: int, pools: int) -> Self:
        """Return an empty tally; raise ``SimulationError`` for more than MOST_GROUPS groups."""
        if groups > MOST_GROUPS:
            raise SimulationError(
                f"The trace has {groups:,} groups of a model, a home region and a tier, and "
                f"{MOST_GROUPS:,} are possible in a stream. Use fewer."
            )
        return cls(
            outcomes=np.zeros((groups, 4), np.int64),
            met=np.zeros(groups, np.int64),
            tokens=np.zeros((groups, 2), np.int64),
            in_time=np.zeros(groups, np.int64),
            known=np.zeros((groups, len(LATENCIES)), np.int64),
            micros=np.zeros((groups, len(LATENCIES)), np.int64),
            buckets=np.zeros((groups, len(LATENCIES), BUCKETS), np.int64),
            hours=np.zeros((hours, tiers, 2), np.int64),
            reasons=np.zeros(len(REASONS), np.int64),
            served=np.zeros((pools, 4)),
            asked=np.zeros((groups, 4)),
            last_s=np.zeros(1),
        )

    def add(self, trace: Trace, log: RequestLog, tiers: tuple[Tier, ...]) -> None:
        """Count requests of ``trace`` with their outcomes in ``log``."""
        if not len(trace):
            return
        ok = in_time(log, trace, tiers)
        shape = (len(trace.models), len(trace.regions), len(trace.tiers))
        group = np.ravel_multi_index((trace.model, trace.region, trace.tier), shape)
        tokens = trace.input_tokens.astype(np.int64) + trace.output_tokens
        completed = log.outcome == COMPLETED
        _add_counts(self.outcomes, group, log.outcome)
        np.add.at(self.met, group[ok], 1)
        np.add.at(self.in_time, group[ok], tokens[ok])
        for i, column in enumerate((trace.input_tokens, trace.output_tokens)):
            np.add.at(self.tokens[:, i], group[completed], column[completed])
        for i, name in enumerate(LATENCIES):
            self._count_latency(i, group, getattr(log, name))
        hour, due = (trace.arrival_s // HOUR_S).astype(np.int64), log.outcome != NOT_DUE
        tier_hour = hour * len(trace.tiers) + trace.tier
        for i, rows in enumerate((due, due & ok)):
            _add_counts(self.hours, tier_hour[rows], i)
        np.add.at(self.reasons, log.reason[log.reason >= 0], 1)
        self._add_attention(trace, group, log.pool)
        self.last_s[0] = np.nanmax(log.last_token_s, initial=self.last_s[0])

    def _count_latency(self, which: int, group: Array, seconds: FloatArray) -> None:
        """Count a latency of requests by group; ``which`` is its index in LATENCIES."""
        finite = np.isfinite(seconds)
        value, group_of_value = np.maximum(seconds[finite], 0.0), group[finite]
        np.add.at(self.known[:, which], group_of_value, 1)
        # Whole microseconds add up equally in any order, unlike floats.
        np.add.at(self.micros[:, which], group_of_value, np.rint(value * 1e6).astype(np.int64))
        bucket = np.clip(_bucket_numbers(value) - _FIRST, 0, BUCKETS - 1)
        _add_counts(self.buckets, group_of_value * len(LATENCIES) + which, bucket)

    def _add_attention(self, trace: Trace, group: Array, pool: Array) -> None:
        """Add the terms of attention work by group and by pool."""
        terms = attention_terms(trace.input_tokens, trace.output_tokens)
        for sums, group_indices in ((self.asked, group), (self.served, pool)):
            served = group_indices >= 0
            for i, term in enumerate(terms):
                sums[:, i] += np.bincount(group_indices[served], term[served], len(sums))

    def plus(self, other: Tally) -> Tally:
        """Return the sum of two tallies, which covers the requests of both."""
        sums = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
        }
        return Tally(**sums | {"last_s": np.maximum(self.last_s, other.last_s)})

    def missed(self, tiers: int) -> IntArray:
        """Return by tier the number of requests that were rejected or late.

        Requests not yet due do not count.
        """
        due = self.outcomes.sum(axis=1) - self.outcomes[:, NOT_DUE]
        late: IntArray = (due - self.met).reshape(-1, tiers).sum(axis=0)
        return late

    def percentiles(self, groups: Array | BoolArray, which: int) -> Percentiles:
        """Return percentiles in milliseconds of one of LATENCIES, over ``groups`` together."""
        count = int(self.known[groups, which].sum())
        if not count:
            return Percentiles(None, None, None, None)
        ends = np.cumsum(self.buckets[groups, which].sum(axis=0))
        mean = int(self.micros[groups, which].sum()) / count / 1e3
        return Percentiles(mean, *(_quantile_ms(ends, share) for share in (0.5, 0.95, 0.99)))


def _add_counts(table: IntArray, row: Array, column: Array | int) -> None:
    """Add one to ``table`` at each given index.

    ``row`` is the index over all axes but the last, flattened, and ``column`` that of the last.
    """
    # numpy adds by a single index four times as fast as by two.
    np.add.at(table.reshape(-1), row * table.shape[-1] + column, 1)


def _quantile_ms(ends: IntArray, share: float) -> float:
    """Return the quantile ``share`` in ms, by the cumulative counts of buckets ``ends``.

    It is linear between the two nearest ranks.
    """
    rank = share * (int(ends[-1]) - 1)
    low = int(rank)
    lower, upper = _MIDDLES_S[np.searchsorted(ends, [low, low + (rank > low)], side="right")]
    return float(lower + (upper - lower) * (rank - low)) * 1e3
