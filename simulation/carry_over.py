"""Begin a window with the requests that are in flight then, and pay for what it leaves beyond them.

A window that begins empty has less to do than one that follows another. It would also pay for all
the work that it leaves, which the next window's fleet does. Requests in flight therefore arrive at
its beginning with the tokens that they still need. They are served, and neither counted nor judged.
Work after the window is paid as far as it exceeds the work that the window began with.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from simulation.arrays import FloatArray
from simulation.engine.result_tables import reject_reasons
from simulation.results import AfterWindow, RequestLog, SimulationResult
from simulation.trace import CachedTokens, Trace, joined_cached, joined_sessions, joined_think


def in_flight(before: Trace, ttft_s: FloatArray, tbt_s: FloatArray, start_s: float) -> Trace:
    """Return the requests of ``before`` that are in flight at ``start_s``, with what they need.

    ``ttft_s`` and ``tbt_s`` ``[models]`` are the times of a request of each model. A request after
    its first token needs the rest of its answer. Its prompt is computed, so one token stands for
    it. One before its first token needs everything. Arrivals are at ``start_s``.
    """
    age = start_s - (before.start_s + before.arrival_s)
    since_first = age - ttft_s[before.model]
    gap = np.maximum(tbt_s[before.model], 1e-9)
    done = np.where(since_first > 0, 1 + np.floor(since_first / gap), 0)
    left = before.output_tokens - np.minimum(done, before.output_tokens)
    still = (age > 0) & (left >= 1)
    rest = replace(
        before,
        input_tokens=np.where(done > 0, 1, before.input_tokens),
        output_tokens=np.maximum(left, 1).astype(np.int32),
        blocks=CachedTokens(np.where(done > 0, 0, before.blocks.tokens))
        if isinstance(before.blocks, CachedTokens)
        else None,
        session=None,
        think_s=None,
    ).rows(still)
    return replace(rest, arrival_s=np.zeros(len(rest)), start_s=start_s)


def with_carried(trace: Trace, carried: Trace) -> Trace:
    """Return ``trace`` with the requests of ``carried`` at its beginning.

    Both have the same names and the same start. ``trace`` has no prompt blocks.
    """
    return replace(
        trace,
        arrival_s=np.concatenate([carried.arrival_s, trace.arrival_s]),
        input_tokens=np.concatenate([carried.input_tokens, trace.input_tokens]),
        output_tokens=np.concatenate([carried.output_tokens, trace.output_tokens]),
        model=np.concatenate([carried.model, trace.model]),
        region=np.concatenate([carried.region, trace.region]),
        tier=np.concatenate([carried.tier, trace.tier]),
        blocks=joined_cached([carried, trace]),
        session=joined_sessions([carried, trace]),
        think_s=joined_think([carried, trace]),
    )


def without_carried(result: SimulationResult, carried: Trace) -> SimulationResult:
    """Return ``result`` of a trace ``with_carried``, without the requests carried over.

    The work after the window is reduced, for each model, by the tokens that it began with.
    """
    rows = slice(len(carried), None)
    log = RequestLog(
        **{its.name: getattr(result.requests, its.name)[rows] for its in fields(RequestLog)}
    )
    began = np.bincount(carried.model, carried.output_tokens, len(carried.models))
    after, names = result.after, [pool.model for pool in result.fleet.pools]
    left = {
        name: float(after.output_tokens[[other == name for other in names]].sum())
        for name in set(names)
    }
    opening = dict(zip(carried.models, began.tolist(), strict=True))
    paid = np.array(
        [
            max(0.0, 1.0 - opening.get(name, 0.0) / left[name]) if left[name] > 0 else 1.0
            for name in names
        ]
    )
    parts = {
        its.name: getattr(after, its.name) * paid
        for its in fields(AfterWindow)
        if its.name != "until_s"
    }
    return replace(
        result,
        trace=result.trace.rows(rows),
        requests=log,
        after=replace(after, **parts),
        reject_reasons=reject_reasons(log),
    )
