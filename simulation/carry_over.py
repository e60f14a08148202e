"""Begin a window with requests in flight, and charge for the work that it adds to them.

A window that begins empty has less work than one that follows another. It would also pay for all
the work that it leaves to the next window's fleet. Requests in flight therefore arrive at its
beginning, with the tokens that they still need. They are served, but not counted in the results.
Work after the window costs only what exceeds the work that the window began with.
"""

from dataclasses import fields, replace

import numpy as np

from simulation.arrays import FloatArray
from simulation.engine.result_tables import reject_reasons, rows
from simulation.results import AfterWindow, SimulationResult
from simulation.trace import CachedTokens, Trace


def in_flight(before: Trace, ttft_s: FloatArray, tbt_s: FloatArray, start_s: float) -> Trace:
    """Return the requests of ``before`` that are in flight at ``start_s`` (epoch seconds).

    Their tokens are those that they still need. ``ttft_s`` and ``tbt_s`` ``[models]`` are the usual
    latencies in seconds. A request past its first token has a prompt of one token and the rest of
    its output. One before its first token needs everything. All arrive at ``start_s``.
    """
    age = start_s - (before.start_s + before.arrival_s)
    since_first = age - ttft_s[before.model]
    gap = np.maximum(tbt_s[before.model], 1e-9)
    done = np.where(since_first > 0, 1 + np.floor(since_first / gap), 0)
    remaining = before.output_tokens - np.minimum(done, before.output_tokens)
    is_unfinished = (age > 0) & (remaining >= 1)
    unfinished = replace(
        before,
        input_tokens=np.where(done > 0, 1, before.input_tokens),
        output_tokens=np.maximum(remaining, 1).astype(np.int32),
        blocks=CachedTokens(np.where(done > 0, 0, before.blocks.tokens))
        if isinstance(before.blocks, CachedTokens)
        else None,
        session=None,
        think_s=None,
    ).rows(is_unfinished)
    return replace(unfinished, arrival_s=np.zeros(len(unfinished)), start_s=start_s)


def without_carried(result: SimulationResult, carried: Trace) -> SimulationResult:
    """Return ``result`` without the ``carried`` requests, the first of its trace.

    The work after the window is reduced, for each model, by the output tokens that they needed.
    """
    kept = slice(len(carried), None)
    log = rows(result.requests, kept)
    carried_output = np.bincount(carried.model, carried.output_tokens, len(carried.models))
    after, names = result.after, [pool.model for pool in result.fleet.pools]
    output_after = {
        name: float(after.output_tokens[[other == name for other in names]].sum())
        for name in set(names)
    }
    carried_tokens = dict(zip(carried.models, carried_output.tolist(), strict=True))

    def share_paid(model: str) -> float:
        """Return the share of a model's work after the window that exceeds the carried work."""
        if output_after[model] <= 0:
            return 1.0
        carried_share = float(carried_tokens.get(model, 0.0)) / output_after[model]
        return max(0.0, 1.0 - carried_share)

    paid = np.array([share_paid(name) for name in names])  # by pool
    parts = {
        column.name: getattr(after, column.name) * paid
        for column in fields(AfterWindow)
        if column.name != "until_s"
    }
    return replace(
        result,
        trace=result.trace.rows(kept),
        requests=log,
        after=replace(after, **parts),
        reject_reasons=reject_reasons(log),
    )
