"""Compiled conversion of a trace to request records, and of records to the request log.

Each function makes one pass over all requests. In numpy every field would need another pass over
whole records.
"""

from typing import Any, NamedTuple

import numpy as np

from simulation.compiler import cached_kernel
from simulation.results import (
    BEYOND_CONTEXT,
    NO_POOL,
    NO_TIER,
    NO_WAY,
    NOT_DUE,
    REASONS,
    REJECTED,
    TOO_LONG,
    UNFINISHED,
)

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


class ServiceTables(NamedTuple):
    """What the fleet can serve, by indices of the trace, or by service and home region."""

    first: Any  # [model, tier] service that gets a request first; -1: none
    homes: Any  # [region] code of the fleet
    tiers: Any  # [tier] code of the fleet
    has_pools: Any  # [model] mask
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
    """Fill the records of requests that have not arrived, and reject those that cannot be served.

    ``words`` is the memory of the records as 64-bit words, and ``empty`` that of an empty record,
    the initial value. ``trace`` are ``TraceColumns``, ``tables`` are ``ServiceTables``. Returns the
    number of requests that are not rejected, and the tokens of the largest of them, at least 1.
    """
    accepted, longest = 0, 1
    for i in range(requests.size):
        for word in range(empty.size):
            words[i, word] = empty[word]
        model, tier, isl, osl = trace.model[i], trace.tier[i], trace.isl[i], trace.osl[i]
        record, service = requests[i], tables.first[model, tier]
        home = tables.homes[trace.region[i]]
        record.arrival, record.isl, record.osl = trace.arrival_s[i], isl, osl
        record.service, record.home, record.tier = service, home, tables.tiers[tier]
        need, reason = np.int64(isl) + osl, -1
        if service < 0:
            reason = NO_SUCH_TIER if tables.has_pools[model] else NO_SUCH_POOL
        elif tables.context[service, home] == 0:
            reason = OUT_OF_REACH
        elif need > tables.context[service, home]:
            reason = TOO_LONG_FOR_MODEL
        elif need > tables.longest[service, home]:
            reason = TOO_LONG_FOR_MEMORY
        if reason >= 0:
            record.outcome, record.reason = REJECTED, reason
        else:
            accepted += 1
            longest = max(longest, need)
    return accepted, longest


@cached_kernel
def fill_log(requests: Any, not_due: Any, away: Any, log: Any) -> None:
    """Fill the columns of the request log, ``log``, from the records at the end of a simulation.

    ``away[home, pool]`` is the seconds from the pool back to the home region. Its last column is
    for requests without a pool (-1). ``not_due`` is the mask of requests whose limits have not
    passed.
    """
    for i in range(requests.size):
        record = requests[i]
        may_finish_in_time = record.outcome == UNFINISHED and not_due[i]
        log.outcome[i] = NOT_DUE if may_finish_in_time else record.outcome
        log.reason[i], log.pool[i] = record.reason, record.pool
        log.first_token_s[i], log.last_token_s[i] = record.first, record.last
        back_s = away[record.home, record.pool]
        log.ttft_s[i] = record.first + back_s - record.arrival
        gaps = record.osl - 1.0 if record.osl > 1 else np.nan
        log.tbt_s[i] = (record.last - record.first) / gaps
        log.e2e_s[i] = record.last + back_s - record.arrival
