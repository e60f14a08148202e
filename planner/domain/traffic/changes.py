"""Change the traffic of a window: more requests, or longer outputs, in a part of it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.domain.random_streams import Stream, generator
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.sessions import Groups
from planner.domain.traffic.traffic import merge
from planner.domain.traffic.window import Window
from simulation.arrays import FloatArray, IntArray
from simulation.trace import Trace


def with_times_requests(
    trace: Trace, factor: float, within_s: float, rng: np.random.Generator
) -> Trace:
    """Return ``trace`` with ``factor`` times as many requests.

    Below 1, each request is kept with that probability. Above 1, each request gets ``factor - 1``
    copies on average. A copy arrives at most half of ``within_s`` before or after the original.
    Sessions are kept or copied as a whole.
    """
    if not len(trace):
        return trace
    groups = Groups.of(trace.session, len(trace))
    begins_s = trace.arrival_s[groups.first_requests]
    drawn_groups = np.flatnonzero(rng.random(len(begins_s)) < factor % 1.0)
    if factor < 1.0:
        return _copy_groups(trace, groups, drawn_groups, begins_s[drawn_groups])
    # A factor of 2.3 adds one copy of all groups, and one of the 30% that were drawn.
    all_groups, full_copies = np.arange(len(begins_s)), int(factor) - 1
    parts = [trace]
    for copied in [*[all_groups] * full_copies, drawn_groups]:
        if len(copied):
            moved_s = rng.uniform(-within_s / 2, within_s / 2, len(copied))
            parts.append(_copy_groups(trace, groups, copied, begins_s[copied] + moved_s))
    return merge(parts, trace.provenance)


def _copy_groups(trace: Trace, groups: Groups, copied: IntArray, begin_s: FloatArray) -> Trace:
    """Return copies of the groups (sessions) number ``copied``, without the other requests.

    A copy begins at ``begin_s [copies]``, in seconds after the start of the trace. Requests after
    the last one of ``trace`` are dropped.
    """
    first_s, last_s = trace.arrival_s[[0, -1]].tolist()
    # Reflected at the ends, since clipped times would pile up there to a burst.
    begin_s = np.where(begin_s < first_s, 2 * first_s - begin_s, begin_s)
    begin_s = np.where(begin_s > last_s, 2 * last_s - begin_s, begin_s)
    begin_s = np.clip(begin_s, first_s, last_s)
    arrival, rows, session = groups.copies(trace.arrival_s, copied, begin_s)
    order = np.argsort(arrival, kind="stable")
    order = order[arrival[order] <= last_s]
    new_ids = None if trace.session is None else session[order]
    return trace.select_with_arrivals(rows[order], arrival[order], new_ids)


def busier(
    trace: Trace, factor: float, start_s: float, end_s: float, window: Window, seed: int
) -> Trace:
    """Return the trace with ``factor`` times the requests in ``[start_s, end_s)`` (epoch seconds).

    ``trace`` is that of ``window``: its arrivals count from the window's start.
    """
    rng = generator(seed, Stream.STRAYS)
    from_s, to_s = start_s - window.start_s, end_s - window.start_s
    inside = (trace.arrival_s >= from_s) & (trace.arrival_s < to_s)
    changed = with_times_requests(trace.rows(inside), factor, window.bin_s, rng)
    return merge([trace.rows(~inside), changed], trace.provenance) if len(changed) else trace


def longer_outputs(trace: Trace, factor: float, from_s: float) -> Trace:
    """Return ``trace`` with outputs ``factor`` times as long in requests that arrive late.

    These arrive ``from_s`` seconds after the start of the trace, or later.
    """
    is_longer = trace.arrival_s >= from_s
    longer = np.rint(factor * trace.output_tokens).astype(trace.output_tokens.dtype)
    output_tokens = np.where(is_longer, np.maximum(longer, 1), trace.output_tokens)
    return replace(trace, output_tokens=output_tokens)


def scale_demand(
    demand: Demand, amounts: Sequence[str], factor: float, start_s: float, end_s: float
) -> Demand:
    """Return ``demand`` with ``factor`` times its ``amounts`` in ``[start_s, end_s)``.

    ``amounts`` are names of its fields, such as "requests". Times are epoch seconds.
    """
    inside = demand.inside(start_s, end_s)
    arrays = {name: np.where(inside, factor, 1.0) * getattr(demand, name) for name in amounts}
    return replace(demand, **arrays)
