"""Compiled conversion of a trace to request records, and of records to a log or a tally.

Each function makes one pass over all requests. In numpy every field would need another pass over
whole records.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from simulation.arrays import FloatArray
from simulation.compiler import cached_kernel, kernel
from simulation.deadlines import due_after_s
from simulation.fleet import HOUR_S, Tier
from simulation.results import (
    BEYOND_CONTEXT,
    COMPLETED,
    NO_POOL,
    NO_TIER,
    NO_WAY,
    NOT_DUE,
    REASONS,
    REJECTED,
    TOO_LONG,
    UNFINISHED,
)
from simulation.stream.tally import BUCKETS, FIRST, SHIFT
from simulation.trace import Trace

NO_SUCH_POOL, NO_SUCH_TIER = REASONS.index(NO_POOL), REASONS.index(NO_TIER)
OUT_OF_REACH = REASONS.index(NO_WAY)
TOO_LONG_FOR_MODEL, TOO_LONG_FOR_MEMORY = REASONS.index(BEYOND_CONTEXT), REASONS.index(TOO_LONG)


class TraceColumns(NamedTuple):
    """The columns of a trace, ``[requests]``; models, regions and tiers are indices of names."""

    arrival_s: Any
    isl: Any
    osl: Any
    model: Any
    region: Any
    tier: Any


def columns_of(trace: Trace) -> TraceColumns:
    """Return the columns of ``trace`` for compiled code."""
    return TraceColumns(
        trace.arrival_s, trace.input_tokens, trace.output_tokens, trace.model, trace.region,
        trace.tier,
    )  # fmt: skip


class ServiceTables(NamedTuple):
    """What the fleet can serve, by indices of the trace, or by service and home region.

    For service see ``allocation.Service``.
    """

    first: Any  # [model, tier] service that gets a request first; -1: none
    homes: Any  # [region] index of the region in the fleet
    tiers: Any  # [tier] index of the tier in the fleet
    has_pools: Any  # [model] whether the fleet has a pool of the model
    context: Any  # [service, home] most tokens that a model accepts; 0: no pool can be reached
    longest: Any  # [service, home] most tokens of a request that fit in KV memory


class LogColumns(NamedTuple):
    """The arrays of a ``RequestLog``, in its order."""

    outcome: Any
    reason: Any
    pool: Any
    first_token_s: Any
    last_token_s: Any
    ttft_s: Any
    tbt_s: Any
    e2e_s: Any


@cached_kernel
def fill_records(requests: Any, words: Any, empty: Any, trace: Any, tables: Any) -> tuple[int, int]:
    """Fill the records ``requests``, and reject those that cannot be served.

    ``words`` is the memory of the records as 64-bit words, and ``empty`` that of a record before
    the request arrives. ``trace`` are ``TraceColumns``. ``tables`` are ``ServiceTables``: the
    service of a request, and the most tokens that its models accept (``context``) and that fit in
    KV memory (``longest``). Return the number of requests that are not rejected, and the tokens of
    the largest of them, at least 1.
    """
    accepted, most_tokens = 0, 1
    for i in range(requests.size):
        for word in range(empty.size):
            words[i, word] = empty[word]
        model, tier, isl, osl = trace.model[i], trace.tier[i], trace.isl[i], trace.osl[i]
        record, service = requests[i], tables.first[model, tier]
        home = tables.homes[trace.region[i]]
        record.arrival_s, record.isl, record.osl = trace.arrival_s[i], isl, osl
        record.service, record.home_region, record.tier = service, home, tables.tiers[tier]
        request_tokens, reason = np.int64(isl) + osl, -1
        if service < 0:
            reason = NO_SUCH_TIER if tables.has_pools[model] else NO_SUCH_POOL
        elif tables.context[service, home] == 0:
            reason = OUT_OF_REACH
        elif request_tokens > tables.context[service, home]:
            reason = TOO_LONG_FOR_MODEL
        elif request_tokens > tables.longest[service, home]:
            reason = TOO_LONG_FOR_MEMORY
        if reason >= 0:
            record.outcome, record.reason = REJECTED, reason
        else:
            accepted += 1
            most_tokens = max(most_tokens, request_tokens)
    return accepted, most_tokens


@kernel
def latencies(record: Any, away: Any) -> tuple[float, float, float]:
    """Return TTFT, TBT and E2E of a request in seconds; NaN if the event did not happen.

    ``away [home region, pool]`` is the seconds from a pool back to a home region.
    """
    back_s = away[record.home_region, record.pool]
    gaps = record.osl - 1.0 if record.osl > 1 else np.nan
    return (
        record.first_token_s + back_s - record.arrival_s,
        (record.last_token_s - record.first_token_s) / gaps,
        record.last_token_s + back_s - record.arrival_s,
    )


@cached_kernel
def fill_log(requests: Any, not_due: Any, away: Any, log: Any) -> None:
    """Fill the columns of the request log, ``log``, from the records at the end of a simulation.

    ``away [home region, pool]`` is the seconds from the pool back to the home region. Its last
    column is for requests without a pool (-1). ``not_due [request]`` is True for requests whose
    limits have not passed.
    """
    for i in range(requests.size):
        record = requests[i]
        is_not_due = record.outcome == UNFINISHED and not_due[i]
        log.outcome[i] = NOT_DUE if is_not_due else record.outcome
        log.reason[i], log.pool[i] = record.reason, record.pool
        log.first_token_s[i], log.last_token_s[i] = record.first_token_s, record.last_token_s
        log.ttft_s[i], log.tbt_s[i], log.e2e_s[i] = latencies(record, away)


TTFT_LIMIT, TBT_LIMIT, E2E_LIMIT, DUE_AFTER = range(4)  # columns of ``Rules.limits``


class Rules(NamedTuple):
    """What decides whether a request meets its SLO, as arrays for compiled code."""

    away: Any  # [home, pool + 1] seconds from the pool to the home region; last: no pool
    # [tier of the trace, 4]: limits of TTFT, TBT and E2E, and the seconds from arrival to due time
    limits: Any
    regions: int  # number of home regions of the trace

    @classmethod
    def of(cls, away: FloatArray, trace: Trace, tiers: Sequence[Tier]) -> Self:
        """Return the rules for the requests of ``trace``; for ``away`` see the class."""
        due_s = due_after_s(trace, tiers)
        limits_of = {tier.name: (tier.ttft_s, tier.tbt_s, tier.e2e_s) for tier in tiers}
        limits = [[np.inf if limit is None else limit for limit in limits_of[name]]
                  for name in trace.tiers]  # fmt: skip
        return cls(away, np.column_stack([np.reshape(limits, (-1, 3)), due_s]), len(trace.regions))


@kernel
def _count_latency(tally: Any, group: int, kind: int, seconds: float) -> None:
    """Count a latency in a ``Tally``; ``kind`` is its index in LATENCIES.

    ``group`` is the index of the request's model, region and tier in the tally.
    """
    if not np.isfinite(seconds):
        return
    value = max(seconds, 0.0)
    tally.known[group, kind] += 1
    # Whole microseconds add up equally in any order, unlike floats.
    tally.micros[group, kind] += np.int64(np.rint(value * 1e6))
    # Doubles of at least 0 sort like their bits. The shift keeps the exponent and STEP_BITS more.
    bucket = (np.float64(value).view(np.int64) >> SHIFT) - FIRST
    tally.buckets[group, kind, min(max(bucket, 0), BUCKETS - 1)] += 1


@kernel
def _is_possible(record: Any, outcome: int, ttft_s: float, e2e_s: float) -> bool:
    """Return whether the outcome and the times of a request do not contradict each other.

    The rules are those of ``invariants.check_invariants``.
    """
    # A TTFT may be slightly negative by rounding: iteration boundaries are products.
    possible = 0 <= outcome <= NOT_DUE and not ttft_s < -1e-9 * (1.0 + record.arrival_s)
    if outcome == COMPLETED:
        served = record.pool >= 0 and record.reason < 0
        return (
            possible
            and served
            and record.first_token_s <= record.last_token_s
            and ttft_s <= e2e_s < np.inf
        )
    if outcome == REJECTED:
        return possible and record.pool < 0 <= record.reason and np.isnan(record.last_token_s)
    return possible and record.reason < 0 and np.isnan(record.last_token_s)


@kernel
def _add_work(work: Any, row: int, isl: float, osl: float) -> None:
    """Add the attention work of a request to ``work[row]`` (columns as in ``Replay.attention``)."""
    work[row, 0] += osl * isl + osl * osl / 2
    work[row, 1] += osl
    work[row, 2] += isl * isl / 2
    work[row, 3] += isl


@cached_kernel
def count_requests(
    records: Any, trace: Any, rules: Any, tally: Any, first: int, until_s: float
) -> bool:
    """Add requests from index ``first`` on to ``tally``; return whether all of them are possible.

    A request is not possible if its outcome and times contradict each other, which is a bug. Its
    group in the tally is its model, home region and tier, numbered in this order.
    ``trace`` are ``TraceColumns``. ``rules`` are ``Rules``: the limits of each tier, and the
    seconds from a pool back to a home region (``away``). ``until_s`` is the end of the simulation.
    If it is infinite, the simulation goes on, and unfinished requests are left out.
    """
    # Local names, since compiled code counts the references to an array at each access to a field.
    arrival_s, models, regions, tier_codes = trace.arrival_s, trace.model, trace.region, trace.tier
    away, limits, served, asked = rules.away, rules.limits, tally.served, tally.asked
    outcomes, tokens, hours, reasons = tally.outcomes, tally.tokens, tally.hours, tally.reasons
    met, in_time, counts_latencies = tally.met, tally.in_time, tally.buckets.shape[1] > 0
    tiers = hours.shape[1]
    all_possible, hour, last_s = True, 0, 0.0
    for i in range(first, records.size):
        record, tier = records[i], tier_codes[i]
        outcome = record.outcome
        if outcome == UNFINISHED:
            if until_s == np.inf:
                continue
            if arrival_s[i] + limits[tier, DUE_AFTER] > until_s:
                outcome = NOT_DUE
        ttft_s, tbt_s, e2e_s = latencies(record, away)
        all_possible = all_possible and _is_possible(record, outcome, ttft_s, e2e_s)
        # A latency that is not a number exceeds no limit.
        is_late = ttft_s > limits[tier, TTFT_LIMIT] or tbt_s > limits[tier, TBT_LIMIT]
        is_late = is_late or e2e_s > limits[tier, E2E_LIMIT]
        within_limits = outcome == COMPLETED and not is_late
        group = (models[i] * rules.regions + regions[i]) * tiers + tier
        isl, osl = np.int64(record.isl), np.int64(record.osl)
        outcomes[group, outcome] += 1
        if outcome == COMPLETED:
            tokens[group, 0] += isl
            tokens[group, 1] += osl
            last_s = max(last_s, record.last_token_s)
        if within_limits:
            met[group] += 1
            in_time[group] += isl + osl
        if outcome != NOT_DUE:
            while arrival_s[i] >= (hour + 1) * HOUR_S:  # arrivals never decrease
                hour += 1
            hours[hour, tier, 0] += 1
            hours[hour, tier, 1] += within_limits
        if record.reason >= 0:
            reasons[record.reason] += 1
        if counts_latencies:
            _count_latency(tally, group, 0, ttft_s)
            _count_latency(tally, group, 1, tbt_s)
            _count_latency(tally, group, 2, e2e_s)
        _add_work(asked, group, float(isl), float(osl))
        if record.pool >= 0:
            _add_work(served, record.pool, float(isl), float(osl))
    tally.last_s[0] = max(tally.last_s[0], last_s)
    return all_possible
