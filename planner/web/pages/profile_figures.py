"""Draw a profile: the time of an iteration, and predictions against measurements."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from planner.outputs.render.figure import (
    BLUE,
    DASHES,
    GREEN,
    GREY,
    LOGARITHMIC,
    MAX_POINTS,
    ORANGE,
    PALETTE,
    Figure,
    figure,
    line,
    points,
)
from simulation.performance.curves import DECODE
from simulation.performance.profile import Profile, iteration_s, measured_range

CONTEXTS = (512, 2048, 8192)  # tokens in the context of a decoding sequence
KEYS = (0, 4096, 16384)  # context tokens before the chunk
SAMPLES = 60
TOKENS = 8192  # largest prefill iteration, unless the profile ends before it
WIDE = 30.0  # ratio of largest to smallest value above which an axis is logarithmic


def decode_figure(profile: Profile) -> Figure:
    """Draw the milliseconds between output tokens over the number of decoding sequences.

    There is a line for each length of their context, or one if the length makes no difference.
    """
    batch = np.unique(np.round(np.geomspace(1, max(2, profile.max_batch), SAMPLES)))
    # Arguments: requests in decode, their KV tokens; no prompt tokens, no pairs of them.
    shortest_s = iteration_s(profile, batch, batch * CONTEXTS[0], 0, 0)
    longest_s = iteration_s(profile, batch, batch * CONTEXTS[-1], 0, 0)
    ignores_context = np.allclose(shortest_s, longest_s)
    traces = []
    for i, context in enumerate(CONTEXTS[:1] if ignores_context else _contexts(profile)):
        took_ms = iteration_s(profile, batch, batch * context, 0, 0) * 1000
        measured = measured_range(profile, batch, batch * context, 0, 0)
        label = "" if ignores_context else f"{context:,} tokens of context"
        traces += _lines(batch, took_ms, measured, label, i, basis_of(profile))
    return figure(traces, height=320, x="requests that decode", y="TPOT, ms", together=True)


def prefill_figure(profile: Profile) -> Figure:
    """Draw the milliseconds of an iteration that computes prompt tokens only.

    There is a line for each number of tokens that the prompt had before them (KEYS).
    """
    most_tokens = max(2, min(TOKENS, profile.max_batch_tokens))
    fewest_tokens = 16 if most_tokens > 16 else 1
    tokens = np.unique(np.round(np.geomspace(fewest_tokens, most_tokens, SAMPLES)))
    traces = []
    for i, before in enumerate(KEYS):
        # Causal attention: a token attends to all before the chunk, and to half of it on average.
        pairs = tokens * (before + tokens / 2)
        took_ms = iteration_s(profile, 0, 0, tokens, pairs) * 1000
        measured = measured_range(profile, 0, 0, tokens, pairs)
        label = f"after {before:,} tokens" if before else "at the beginning of a prompt"
        traces += _lines(tokens, took_ms, measured, label, i, basis_of(profile))
        # One line is enough if the time does not depend on the context before the chunk.
        long_context_s = iteration_s(profile, 0, 0, tokens[-1], tokens[-1] * 1e4)
        if np.isclose(long_context_s, took_ms[-1] / 1000):
            break
    return figure(traces, height=320, x="prompt tokens", y="ms", together=True)


def residual_figures(residuals: pl.DataFrame) -> list[tuple[str, Figure]]:
    """Draw, for each quantity, predicted over measured values and the line of equality."""
    by_quantity = residuals.partition_by("quantity", as_dict=True)
    return [(str(quantity), _residual_figure(rows)) for (quantity,), rows in by_quantity.items()]


def _residual_figure(rows: pl.DataFrame) -> Figure:
    """Draw predicted over measured values of one quantity; outliers are crosses."""
    unit = str(rows["unit"][0])
    all_values = np.concatenate([rows["measured"].to_numpy(), rows["predicted"].to_numpy()])
    least, most = float(all_values.min()), float(all_values.max())
    ends = [least, most]
    traces: list[Any] = [line(ends, ends, "exact", GREY, dash="dot", width=1)]
    shown = rows if rows.height <= MAX_POINTS else rows.sample(MAX_POINTS, seed=0)
    usual, outliers = shown.filter(~pl.col("outlier")), shown.filter("outlier")
    if not usual.is_empty():
        traces.append(_residual_points(usual, unit, "rows", BLUE, "circle"))
    if not outliers.is_empty():
        traces.append(_residual_points(outliers, unit, "outliers", ORANGE, "x"))
    axis = LOGARITHMIC if least > 0 and most / least > WIDE else {}
    return figure(
        traces, height=340, x=f"measured, {unit}", y=f"predicted, {unit}", xaxis=axis, yaxis=axis
    )


def _residual_points(rows: pl.DataFrame, unit: str, label: str, colour: str, symbol: str) -> Any:
    """Return rows as points at (measured, predicted)."""
    hover = f"%{{text}}<br>measured %{{x:,.4~r}} {unit}, predicted %{{y:,.4~r}} {unit}"
    return points(
        _round(rows["measured"]), _round(rows["predicted"]), label, colour,
        symbol=symbol, size=6, marker_opacity=0.7, text=rows["label"].to_list(), hover=hover,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SweepLine:
    """One estimated quantity at each concurrency of a sweep."""

    name: str
    unit: str
    values: Sequence[float | None]


def sweep_figure(concurrency: Sequence[float], lines: Sequence[SweepLine]) -> Figure:
    """Draw estimates of one unit over concurrency, the requests in flight.

    An axis is logarithmic if its values range widely.
    """
    traces = []
    for i, drawn in enumerate(lines):
        rounded = [None if value is None else float(f"{value:.5g}") for value in drawn.values]
        trace = line(
            concurrency, rounded, f"{drawn.name}, {drawn.unit}", (BLUE, ORANGE, GREEN)[i % 3],
            dash=DASHES[i % 3], hover=f"%{{y:,.4~r}} {drawn.unit}",
        )  # fmt: skip
        traces.append(trace)
    values = [value for drawn in lines for value in drawn.values if value]
    loads = [max(1.0, load) for load in concurrency]
    return figure(
        traces, height=300, x="requests in flight", together=True,
        xaxis={"type": "log", "dtick": 1} if _is_wide(loads) else {},
        # queues take seconds and iterations milliseconds; a log axis shows both
        yaxis=LOGARITHMIC if _is_wide(values) else {},
    )  # fmt: skip


def _is_wide(values: Sequence[float]) -> bool:
    """Return whether positive values span so much that their axis should be logarithmic."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > WIDE


def basis_of(profile: Profile) -> str:
    """Return "measured" if the speeds of the profile were measured, else "modelled"."""
    return "measured" if profile.provenance.kind == "measured" else "modelled"


def _lines(x: Any, y: Any, measured: Any, label: str, rank: int, basis: str) -> list[Any]:
    """Return the line with the colour of ``rank``; it is thin and dotted where not ``measured``.

    ``measured`` tells for each point whether it is in the range of the profile, which ``basis``
    names: measured or modelled.
    """
    inside = _clean(np.where(measured, y, np.nan))  # a gap where not measured
    colour, hover = PALETTE[rank], "%{y:,.4~r} ms"
    lines = []
    if not measured.all():
        beyond = f"{label}, beyond it" if label else f"beyond the {basis} range"
        lines.append(line(x.tolist(), _clean(y), beyond, colour, width=1, dash="dot", hover=hover))
    if measured.any():
        lines.append(line(x.tolist(), inside, label or f"{basis} range", colour, hover=hover))
    return lines


def _contexts(profile: Profile) -> tuple[int, ...]:
    """Return the usual context lengths if the profile covers two, else some of its own."""
    values = profile.curve.values
    # The header of the decode part: offset, number of batch sizes and of contexts in its grid.
    start, batches, contexts = (int(value) for value in values[DECODE : DECODE + 3])
    # The grid has the batch sizes first, then the contexts, both rising.
    grid_contexts = values[start + batches : start + batches + contexts]
    shortest, longest = grid_contexts[0], grid_contexts[-1]
    usual = tuple(context for context in CONTEXTS if shortest <= context <= longest)
    if len(usual) > 1:
        return usual
    chosen = np.unique(np.round(np.quantile(grid_contexts, (0, 0.5, 1), method="nearest")))
    return tuple(int(context) for context in chosen if context >= 1) or CONTEXTS


def _clean(values: Any) -> list[float | None]:
    """Return values rounded to five digits, with None for NaN and infinity, which JSON lacks."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def _round(values: pl.Series) -> list[float]:
    """Return values rounded to five digits."""
    return [float(f"{value:.5g}") for value in values.to_list()]
