"""Replay of a trace, as a stream if it is long, and figures of both kinds of result.

A request takes about 140 bytes during a replay, in addition to the trace. So a long trace would not
fit in memory. A stream needs no memory per request. But its percentiles are exact only within
``ERROR``, and it has no rows by request. All other figures are equal to the bit.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from simulation.arrays import Array, IntArray, count_codes, row_slices
from simulation.early_stop import LateCounter
from simulation.engine.allocation import request_records, services
from simulation.engine.run import duration_in_whole_intervals_s
from simulation.engine.stream_run import simulate_stream
from simulation.fleet import Fleet
from simulation.metrics import Summary, meets_slo, summarise
from simulation.parallel_replay import simulate_in_parallel
from simulation.policy import ScalingPolicy
from simulation.results import NOT_DUE, SimulationResult
from simulation.stream.parts import parts_of
from simulation.stream.result import StreamResult, summarise_stream
from simulation.stream.stream import PIECE, Stream
from simulation.stream.tally import ERROR, Tally
from simulation.trace import Trace

Replayed = SimulationResult | StreamResult
LONG = 10_000_000  # requests; about 2 GB in memory
AT_ONCE = 2  # parts of a fleet (groups of models) that run in parallel, one core each
# Fewest requests per scaling decision to run in parallel; else synchronization takes too long
REQUESTS_PER_DECISION = 1000


def is_long(requests: int) -> bool:
    """Return whether a trace of this many requests must be replayed as a stream."""
    return requests > LONG


def percentile_error(requests: int) -> float:
    """Return the largest relative error of percentiles in a replay of this many requests."""
    return ERROR if is_long(requests) else 0.0


def simulate_long_trace(
    trace: Trace,
    fleet: Fleet,
    policy: ScalingPolicy,
    *,
    seed: int = 0,
    duration_s: float | None = None,
    interval_s: float = 60.0,
    progress: Callable[[float], None] | None = None,
    watch: LateCounter | None = None,
) -> StreamResult:
    """Replay a trace as a stream, on two cores if its models share nothing.

    ``duration_s`` is the window's length; default: the whole intervals that contain the trace.
    ``watch`` counts late requests and may end the replay. It needs a single core. For the other
    arguments see ``simulate``.
    """
    requests_by_tier = count_by_tier(trace, fleet) if watch is not None else np.zeros(0, np.int64)
    tier_index = _tier_indices(trace.tiers, fleet)

    def check_targets(now: float, records: Array, tally: Tally) -> None:
        """Give ``watch`` the late requests by tier; called once per interval of the series."""
        assert watch is not None
        late = np.zeros(len(fleet.tiers), np.int64)
        late[tier_index] = tally.missed_by_tier(len(trace.tiers))
        watch.check_stream(now, records, late, requests_by_tier)

    stream = Stream.of(trace, most_tokens=_largest_served_request(trace, fleet))
    if duration_s is None:
        duration_s = duration_in_whole_intervals_s(trace, interval_s)
    parts = parts_of(fleet, AT_ONCE)
    decisions = duration_s / policy.interval_s
    replay = partial(
        simulate_stream, seed=seed, duration_s=duration_s, interval_s=interval_s, piece=PIECE
    )
    # ``simulate_in_parallel`` takes no watch.
    if watch is None and len(parts) > 1 and len(trace) >= REQUESTS_PER_DECISION * decisions:
        return simulate_in_parallel(stream, fleet, parts, policy, replay, progress)
    return replay(
        stream, fleet, policy, progress=progress, watch=None if watch is None else check_targets
    )


def simulate_briefly(
    trace: Trace,
    fleet: Fleet,
    policy: ScalingPolicy,
    *,
    seed: int = 0,
    duration_s: float | None = None,
    interval_s: float = 60.0,
    progress: Callable[[float], None] | None = None,
    watch: LateCounter | None = None,
    carried: int = 0,
) -> StreamResult:
    """Replay a trace without sessions, and only count its requests.

    This saves the rows and the percentiles of requests. The first ``carried`` requests are not
    counted. For the other arguments see ``simulate_long_trace``.
    """
    if duration_s is None:
        duration_s = duration_in_whole_intervals_s(trace, interval_s)
    chunk_requests = max(len(trace), 1)
    return simulate_stream(
        Stream.of(trace, chunk_requests, most_tokens=0),
        fleet,
        policy,
        duration_s=duration_s,
        seed=seed,
        interval_s=interval_s,
        piece=chunk_requests,
        progress=progress,
        watch=None if watch is None else lambda now, records, tally: watch(now, records),
        whole=True,
        carried=carried,
    )


def _tier_indices(tiers: tuple[str, ...], fleet: Fleet) -> IntArray:
    """Return the indices of the trace's tiers among the fleet's."""
    names = [tier.name for tier in fleet.tiers]
    return np.array([names.index(name) for name in tiers], np.int64)


def count_by_tier(trace: Trace, fleet: Fleet) -> IntArray:
    """Return the number of requests of each tier of the fleet."""
    counts = np.zeros(len(fleet.tiers), np.int64)
    counts[_tier_indices(trace.tiers, fleet)] = count_codes(trace.tier, len(trace.tiers))
    return counts


def _largest_served_request(trace: Trace, fleet: Fleet) -> int:
    """Return the tokens (input and output together) of the largest request that is not rejected."""
    pools_by_service, largest = services(fleet), 1
    for block_rows in row_slices(len(trace)):
        block = replace(trace.rows(block_rows), blocks=None)
        # Only larger requests can change the result.
        larger = block.input_tokens.astype(np.int64) + block.output_tokens > largest
        _, _, largest_of_block = request_records(block.rows(larger), fleet, pools_by_service)
        largest = max(largest, largest_of_block)
    return largest


def summarise_replay(result: Replayed, *, brief: bool = False) -> Summary:
    """Return the figures of a replay; for ``brief`` see ``summarise``."""
    if isinstance(result, StreamResult):
        return summarise_stream(result)
    return summarise(result, brief=brief)


def due_and_late(result: Replayed) -> tuple[IntArray, IntArray]:
    """Return the numbers of due requests, and of late or rejected ones, by tier of the fleet.

    If the fleet is replayed as one of several equal cells, both count that cell's requests.
    """
    due, late = np.zeros((2, len(result.fleet.tiers)), np.int64)
    if isinstance(result, StreamResult):
        tier_index = _tier_indices(result.tiers, result.fleet)
        outcomes = result.tally.outcomes  # [groups, outcomes]; the tier varies fastest over groups
        tiers, outcome_kinds = len(tier_index), outcomes.shape[1]
        outcomes_by_tier = outcomes.reshape(-1, tiers, outcome_kinds).sum(axis=0)
        due[tier_index] = outcomes_by_tier.sum(axis=1) - outcomes_by_tier[:, NOT_DUE]
        late[tier_index] = result.tally.missed_by_tier(len(tier_index))
        return due, late
    trace, tiers = result.trace, len(result.trace.tiers)
    tier_index = _tier_indices(trace.tiers, result.fleet)
    is_due = np.not_equal(result.requests.outcome, NOT_DUE)
    is_late = is_due & ~meets_slo(result)
    due[tier_index] = np.bincount(trace.tier[is_due], minlength=tiers)
    late[tier_index] = np.bincount(trace.tier[is_late], minlength=tiers)
    return due, late
