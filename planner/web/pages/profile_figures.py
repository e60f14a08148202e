"""Draw a profile: the time of an iteration, and predictions against measurements."""

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
    """Draw the milliseconds between output tokens over the number of decoding sequences."""
    batch = np.unique(np.round(np.geomspace(1, max(2, profile.max_batch), SAMPLES)))
    traces = []
    # A linear profile does not depend on the context: one line.
    by_context = not _ignores_context(profile, batch)
    for i, context in enumerate(_contexts(profile) if by_context else CONTEXTS[:1]):
        took_ms = iteration_s(profile, batch, batch * context, 0, 0) * 1000
        measured = measured_range(profile, batch, batch * context, 0, 0)
        label = f"{context:,} tokens of context" if by_context else ""
        traces += _lines(batch, took_ms, measured, label, i, basis_of(profile))
    return figure(traces, height=320, x="requests that decode", y="TPOT, ms", together=True)


def prefill_figure(profile: Profile) -> Figure:
    """Draw the milliseconds of an iteration that computes prompt tokens only."""
    most_tokens = max(2, min(TOKENS, profile.max_batch_tokens))
    tokens = np.unique(np.round(np.geomspace(16 if most_tokens > 16 else 1, most_tokens, SAMPLES)))
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
    return figure(
        traces, height=320, x="prompt tokens", y="ms",
        together=True,
    )  # fmt: skip


def residual_figures(residuals: pl.DataFrame) -> list[tuple[str, Figure]]:
    """Draw, for each quantity, predicted over measured values and the line of equality."""
    figures = []
    for (quantity,), rows in residuals.partition_by("quantity", as_dict=True).items():
        shown = rows if rows.height <= MAX_POINTS else rows.sample(MAX_POINTS, seed=0)
        unit = str(rows["unit"][0])
        all_values = np.concatenate([rows["measured"].to_numpy(), rows["predicted"].to_numpy()])
        ends = [float(all_values.min()), float(all_values.max())]
        traces: list[Any] = [line(ends, ends, "exact", GREY, dash="dot", width=1)]
        for outlier, label, colour, symbol in (
            (False, "rows", BLUE, "circle"),
            (True, "outliers", ORANGE, "x"),
        ):
            part = shown.filter(pl.col("outlier") == outlier)
            if part.is_empty():
                continue
            traces.append(
                points(
                    _round(part["measured"]), _round(part["predicted"]), label, colour,
                    symbol=symbol, size=6, marker_opacity=0.7, text=part["label"].to_list(),
                    hover=f"%{{text}}<br>measured %{{x:,.4~r}} {unit}, "
                    f"predicted %{{y:,.4~r}} {unit}",
                )
            )  # fmt: skip
        axis = LOGARITHMIC if ends[0] > 0 and ends[1] / ends[0] > WIDE else {}
        chart = figure(
            traces, height=340, x=f"measured, {unit}", y=f"predicted, {unit}",
            xaxis=axis, yaxis=axis,
        )  # fmt: skip
        figures.append((str(quantity), chart))
    return figures


def sweep_figure(
    concurrency: list[float], lines: list[tuple[str, str, list[float | None], str]]
) -> Figure:
    """Draw estimates over concurrency; each line is (name, unit, values, axis y or y2)."""
    traces = [
        line(
            concurrency, [None if value is None else float(f"{value:.5g}") for value in values],
            f"{name}, {unit}", (BLUE, ORANGE, GREEN)[i % 3], dash=DASHES[i % 3], yaxis=axis,
            hover=f"%{{y:,.4~r}} {unit}",
        )
        for i, (name, unit, values, axis) in enumerate(lines)
    ]  # fmt: skip
    left, right = (
        next((unit for _, unit, _, axis in lines if axis == side), "") for side in ("y", "y2")
    )
    wide_loads = concurrency and max(concurrency) / max(1.0, min(concurrency)) > WIDE
    left_values = [
        value for _, _, values, axis in lines if axis == "y" for value in values if value
    ]
    wide_values = (
        left_values and min(left_values) > 0 and max(left_values) / min(left_values) > WIDE
    )
    return figure(
        traces, height=300, x="requests in flight", y=left, right=right, together=True,
        xaxis={"type": "log", "dtick": 1} if wide_loads else {},
        # queues take seconds and iterations milliseconds; a log axis shows both
        yaxis=LOGARITHMIC if wide_values else {},
    )  # fmt: skip


def basis_of(profile: Profile) -> str:
    """Return "measured" if the speeds of the profile were measured, else "modelled"."""
    return "measured" if profile.provenance.kind == "measured" else "modelled"


def _lines(x: Any, y: Any, measured: Any, label: str, rank: int, basis: str) -> list[Any]:
    """Return the line with the colour of ``rank``; it is thin and dotted where not ``measured``.

    ``measured`` tells for each point whether it is in the range of the profile, which ``basis``
    names: measured or modelled.
    """
    inside = _clean(np.where(measured, y, np.nan))
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
    knots = values[start + batches : start + batches + contexts]
    usual = tuple(context for context in CONTEXTS if knots[0] <= context <= knots[-1])
    if len(usual) > 1:
        return usual
    chosen = np.unique(np.round(np.quantile(knots, (0, 0.5, 1), method="nearest")))
    return tuple(int(context) for context in chosen if context >= 1) or CONTEXTS


def _ignores_context(profile: Profile, batch: Any) -> bool:
    """Return whether the shortest and the longest of ``CONTEXTS`` take the same time."""
    near = iteration_s(profile, batch, batch * CONTEXTS[0], 0, 0)
    return bool(np.allclose(near, iteration_s(profile, batch, batch * CONTEXTS[-1], 0, 0)))


def _clean(values: Any) -> list[float | None]:
    """Return values rounded to five digits, with None for NaN and infinity, which JSON lacks."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def _round(values: pl.Series) -> list[float]:
    """Return values rounded to five digits."""
    return [float(f"{value:.5g}") for value in values.to_list()]
