"""Change requests and demand: more of them, or longer outputs, in a part of a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.domain.random_streams import Stream, generator
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.traffic import merge
from planner.domain.traffic.window import Window
from simulation.trace import Trace


def times(trace: Trace, share: float, within_s: float, rng: np.random.Generator) -> Trace:
    """Return ``trace`` with ``share`` times the requests.

    Below 1, a random part is kept. Above 1, requests are repeated, and the rest is a random part.
    Each repeat arrives at most half of ``within_s`` from the original.
    """
    drawn = rng.random(len(trace)) < share % 1.0
    if share < 1.0:
        return trace.rows(drawn)

    def again(part: Trace) -> Trace:
        moved = part.arrival_s + rng.uniform(-within_s / 2, within_s / 2, len(part))
        # Reflected at the ends: clipped there, repeats would pile up to a burst.
        first, last = float(trace.arrival_s[0]), float(trace.arrival_s[-1])
        moved = np.where(moved < first, 2 * first - moved, moved)
        moved = np.where(moved > last, 2 * last - moved, moved)
        arrival = np.sort(np.clip(moved, first, last))
        return replace(part, arrival_s=arrival)

    parts = [*[trace] * (int(share) - 1), trace.rows(drawn)]
    more = [again(part) for part in parts if len(part)]
    return merge([trace, *more], trace.provenance) if more else trace


def busier(
    trace: Trace, factor: float, start_s: float, end_s: float, window: Window, seed: int
) -> Trace:
    """Return the trace with ``factor`` times the requests in ``[start_s, end_s)``."""
    rng = generator(seed, Stream.STRAYS)
    inside = (trace.arrival_s >= start_s - window.start_s) & (
        trace.arrival_s < end_s - window.start_s
    )
    part = times(trace.rows(inside), factor, window.bin_s, rng)
    return merge([trace.rows(~inside), part], trace.provenance) if len(part) else trace


def longer_outputs(trace: Trace, factor: float, from_s: float) -> Trace:
    """Return the trace with outputs ``factor`` times as long for arrivals from ``from_s`` on."""
    late = trace.arrival_s >= from_s
    grown = np.rint(factor * trace.output_tokens).astype(trace.output_tokens.dtype)
    return replace(trace, output_tokens=np.where(late, np.maximum(grown, 1), trace.output_tokens))


def scale_demand(
    demand: Demand, amounts: Sequence[str], factor: float, start_s: float, end_s: float
) -> Demand:
    """Return ``demand`` with ``amounts`` in ``[start_s, end_s)`` multiplied by ``factor``."""
    inside = demand.inside(start_s, end_s)
    arrays = {name: np.where(inside, factor, 1.0) * getattr(demand, name) for name in amounts}
    return replace(demand, **arrays)
