"""``simulate_stream``: the replay of ``simulate`` for more requests than fit in memory."""

import time
from collections.abc import Callable
from dataclasses import replace

from simulation import invariants
from simulation.arrays import Array
from simulation.engine import result_tables
from simulation.engine.allocation import StreamLimits, allocate
from simulation.engine.request_supply import StreamFeed
from simulation.engine.run import begin, check_inputs, drain, run_window
from simulation.errors import SimulationError
from simulation.fleet import HOUR_S, Fleet
from simulation.policy import ScalingPolicy
from simulation.results import REJECTED
from simulation.stream.result import StreamResult
from simulation.stream.stream import PIECE, Stream
from simulation.stream.tally import Tally


def simulate_stream(
    stream: Stream,
    fleet: Fleet,
    policy: ScalingPolicy,
    *,
    duration_s: float,
    seed: int = 0,
    interval_s: float = 60.0,
    piece: int = PIECE,
    progress: Callable[[float], None] | None = None,
    watch: Callable[[float, Array, Tally], None] | None = None,
    last_due: Callable[[float], float] | None = None,
    whole: bool = False,
    carried: int = 0,
) -> StreamResult:
    """Replay the requests of ``stream`` before ``duration_s`` exactly as ``simulate`` does.

    The engine keeps the next ``piece`` requests and the unfinished ones in memory. A finished
    request is added to a tally and dropped. So memory does not grow with the length of the trace,
    but with the requests unfinished at one time, which are many if the fleet is too small.

    ``last_due`` is for a part of a fleet: it maps the time at which the last of its requests is due
    to that of the whole fleet. The simulation waits for unfinished requests until then.
    ``watch(now, records, tally)`` gets the records in memory and the tally of the others.

    If ``whole``, the stream is a single piece, and the result has no percentiles. The first
    ``carried`` requests of the piece are then served, but are not in the result.
    """
    began = time.perf_counter()
    interval_s, duration_s = float(interval_s), float(duration_s)
    check_inputs(fleet, policy, stream.regions, stream.tiers, interval_s)
    if not duration_s > 0 or piece < 1:
        raise SimulationError("duration_s must be positive, and a piece at least one request.")
    groups = len(stream.models) * len(stream.regions) * len(stream.tiers)
    hours = int(duration_s // HOUR_S) + 1
    tally = Tally.empty(groups, len(stream.tiers), hours, len(fleet.pools), latencies=not whole)
    pieces = stream.pieces(duration_s, piece)
    first_piece = next(pieces, stream.empty_piece)
    limits = None if whole else StreamLimits(stream.requests, stream.most_tokens)
    state = allocate(first_piece, fleet, duration_s, interval_s, seed, limits)
    feed = StreamFeed(first_piece, pieces, fleet, tally)
    time_advance = begin(state, fleet, policy, duration_s, seed, progress, feed)
    watch_records = None if watch is None else lambda now, records: watch(now, records, tally)
    waiting, at_router = run_window(
        state, fleet, policy, duration_s, interval_s, time_advance, watch_records
    )
    last_due_s = feed.last_due_s if last_due is None else last_due(feed.last_due_s)
    until_s = drain(state, duration_s, last_due_s, policy.interval_s, time_advance)
    feed.count(state, until_s, carried)
    result = StreamResult(
        policy=policy.name,
        seed=seed,
        fleet=fleet,
        duration_s=duration_s,
        series=result_tables.pool_series(state, duration_s, interval_s, waiting, at_router),
        totals=result_tables.pool_totals(state),
        after=result_tables.after_window(state, until_s),
        reject_reasons=result_tables.by_reason(tally.reasons),
        wall_seconds=time.perf_counter() - began,
        began_s=stream.start_s,
        models=stream.models,
        regions=stream.regions,
        tiers=stream.tiers,
        tally=tally,
        last_due_s=feed.last_due_s,
    )
    invariants.check_state(state.pools, state.instances, int(state.clock[0]["unfinished"]))
    invariants.check_totals(
        result,
        arrived=int(tally.outcomes.sum()),
        rejected=int(tally.outcomes[:, REJECTED].sum()),
        last_s=float(tally.last_s[0]),
    )
    if progress is not None:
        progress(1.0)
    return replace(result, wall_seconds=time.perf_counter() - began)
