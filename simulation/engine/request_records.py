"""Compiled conversion of a trace to request records, and of records to the request log.

Each function makes one pass over all requests. In numpy every field would need another pass over
whole records.
"""

from typing import Any

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


@cached_kernel
def fill_records(
    requests: Any, model_context: Any, empty: Any, arrival: Any, isl: Any, osl: Any, model: Any,
    region: Any, tier: Any, first: Any, homes: Any, tiers: Any, model_has_pools: Any, context: Any,
    longest: Any,
) -> None:  # fmt: skip
    """Fill the records of requests that have not arrived, and reject those that cannot be served.

    ``model_context`` is the memory of the records as 64-bit words and ``empty`` that of an empty
    record. ``first[model, tier]`` is the service that gets a request first; -1: none. ``homes`` and
    ``tiers`` map codes of the trace to those of the fleet. ``model_has_pools`` is a mask of the
    models with a pool. ``context[service, home]`` is the largest request in tokens that a model
    accepts; 0 if no pool can be reached. ``longest[service, home]`` is the largest one that fits in
    KV memory.
    """
    for i in range(requests.size):
        for model_of_context in range(empty.size):
            model_context[i, model_of_context] = empty[model_of_context]
        record, service, home = requests[i], first[model[i], tier[i]], homes[region[i]]
        record.arrival, record.isl, record.osl = arrival[i], isl[i], osl[i]
        record.model, record.home, record.tier = service, home, tiers[tier[i]]
        need, reason = np.int64(isl[i]) + osl[i], -1
        if service < 0:
            reason = NO_SUCH_TIER if model_has_pools[model[i]] else NO_SUCH_POOL
        elif context[service, home] == 0:
            reason = OUT_OF_REACH
        elif need > context[service, home]:
            reason = TOO_LONG_FOR_MODEL
        elif need > longest[service, home]:
            reason = TOO_LONG_FOR_MEMORY
        if reason >= 0:
            record.outcome, record.reason = REJECTED, reason


@cached_kernel
def fill_log(
    requests: Any, not_due: Any, away: Any, outcome: Any, reason: Any, pool: Any, first: Any,
    last: Any, ttft: Any, tbt: Any, e2e: Any,
) -> None:  # fmt: skip
    """Fill the columns of the request log.

    ``away[home, pool]`` is the seconds from the pool back to the home region. Its last column is
    for requests without a pool (-1). ``not_due`` is the mask of requests whose limits have not
    passed. The other arrays are filled.
    """
    for i in range(requests.size):
        record = requests[i]
        late = record.outcome == UNFINISHED and not_due[i]
        outcome[i] = NOT_DUE if late else record.outcome
        reason[i], pool[i] = record.reason, record.pool
        first[i], last[i] = record.first, record.last
        back = away[record.home, record.pool]
        ttft[i] = record.first + back - record.arrival
        tbt[i] = (record.last - record.first) / (record.osl - 1.0 if record.osl > 1 else np.nan)
        e2e[i] = record.last + back - record.arrival
