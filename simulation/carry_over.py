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
from simulation.results import AfterWindow, Replay, SimulationResult
from simulation.trace import CachedTokens, Trace


def in_flight(before: Trace, ttft_s: FloatArray, tbt_s: FloatArray, start_s: float) -> Trace:
    """Return the requests of ``before`` that are in flight at ``start_s`` (epoch seconds).

    They all arrive at ``start_s``. A request that has its first token gets a prompt of one token
    and the outputs that it still lacks. Any other request keeps all its tokens. The progress of
    requests is estimated from usual latencies in seconds, ``ttft_s [models]`` and
    ``tbt_s [models]``. Prompt blocks are dropped, since the result has other prompts.
    """
    age_s = start_s - (before.start_s + before.arrival_s)
    since_first_s = age_s - ttft_s[before.model]
    gap_s = np.maximum(tbt_s[before.model], 1e-9)
    # The first token, and one more after each gap.
    tokens_done = np.where(since_first_s > 0, 1 + np.floor(since_first_s / gap_s), 0)
    remaining = before.output_tokens - np.minimum(tokens_done, before.output_tokens)
    blocks = None
    if isinstance(before.blocks, CachedTokens):
        blocks = CachedTokens(np.where(tokens_done > 0, 0, before.blocks.tokens))
    changed = replace(
        before,
        input_tokens=np.where(tokens_done > 0, 1, before.input_tokens),
        output_tokens=np.maximum(remaining, 1).astype(np.int32),
        blocks=blocks,
        session=None,
        think_s=None,
    )
    unfinished = changed.rows((age_s > 0) & (remaining >= 1))
    return replace(unfinished, arrival_s=np.zeros(len(unfinished)), start_s=start_s)


def without_carried(result: SimulationResult, carried: Trace) -> SimulationResult:
    """Return ``result`` without the requests ``carried``, which are the first of its trace.

    Their output tokens are also taken out of the work after the window.
    """
    window_rows = slice(len(carried), None)
    log = rows(result.requests, window_rows)
    return replace(
        result,
        trace=result.trace.rows(window_rows),
        requests=log,
        after=own_work_after(result, carried),
        reject_reasons=reject_reasons(log),
    )


def own_work_after(result: Replay, carried: Trace) -> AfterWindow:
    """Return the work after the window without that of the requests ``carried``.

    Each pool keeps the share of its model's output tokens that are not theirs.
    """
    after, models = result.after, np.array([pool.model for pool in result.fleet.pools])
    own_share = np.ones(len(models))  # [pools]
    for code, model in enumerate(carried.models):
        carried_tokens = float(carried.output_tokens[carried.model == code].sum(dtype=np.int64))
        output_tokens = float(after.output_tokens[models == model].sum())
        if output_tokens > 0:
            own_share[models == model] = max(0.0, 1.0 - carried_tokens / output_tokens)
    columns = [column.name for column in fields(AfterWindow) if column.name != "until_s"]
    return replace(after, **{name: getattr(after, name) * own_share for name in columns})
