"""Draw the charts of a report as shapes at positions, for SVG and PDF alike."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, floor, log10
from typing import Any

import polars as pl

from planner.models import Run
from planner.outputs.policy_tables import labelled
from planner.outputs.report.values import (
    Bar,
    Chart,
    Line,
)
from planner.selectors.runs import run_table, run_tables
from planner.templatetags.headroom import digits, duration

WIDTH, HEIGHT = 700.0, 220.0  # points
LEFT, RIGHT, TOP, BOTTOM = 52.0, 22.0, 24.0, 30.0
BAR, BESIDE = 19.0, 250.0  # height of a bar's row; width of its label
SIZE = 9.0  # font size
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8A8F98"
INK, GRID = "#333b46", "#d7dbe0"
MOST = 600  # most steps of a line; more would not be visible


@dataclass(frozen=True, slots=True)
class Path:
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1.0
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Box:
    """A filled rectangle."""

    x: float
    y: float
    width: float
    height: float
    colour: str


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text; ``anchor`` is start, middle or end."""

    x: float
    y: float
    text: str
    anchor: str = "start"
    colour: str = INK


@dataclass(frozen=True, slots=True)
class Drawing:
    """Shapes on an area of ``width`` by ``height`` points; y points downwards."""

    width: float
    height: float
    parts: tuple[Path | Box | Text, ...]


def charts_of(run: Run, result: dict[str, Any]) -> tuple[Chart, ...]:
    """Return the charts over time: replicas and demand."""
    names = run_tables(run)
    drawn = (
        _replicas(run, result) if "replicas" in names else None,
        _demand(run) if "forecast" in names else None,
    )
    return tuple(chart for chart in drawn if chart is not None)


def _replicas(run: Run, result: dict[str, Any]) -> Chart | None:
    """Return the ready replicas of all pools for the recommended policy and the baseline."""
    policies = result.get("policies") or {}
    take = (result.get("recommended") or {}).get("policy")
    shown = [name for name in dict.fromkeys((take, result.get("baseline"))) if name in policies]
    table = run_table(run, "replicas")
    if not shown:
        shown = table["policy"].unique(maintain_order=True).to_list()[:2]
    lines = []
    for name, colour, dashed in zip(shown, (BLUE, GREY), (False, True), strict=False):
        of_policy = table.filter(pl.col("policy") == name)
        ready = of_policy.group_by("time").agg(pl.col("ready").sum().round(2)).sort("time")
        label = labelled(policies[name]) if name in policies else name
        lines.append(
            _line(label, ready["time"].to_list(), ready["ready"].to_list(), colour, dashed)
        )
    words = "Replicas that serve, over all models and regions, as replayed."
    return Chart("Replicas over time", "replicas", words, tuple(lines))


def _demand(run: Run) -> Chart | None:
    """Return the actual, forecast and planned demand."""
    table = run_table(run, "forecast")
    columns = [column for column in ("actual", "mean", "planned") if column in table.columns]
    table = table.group_by("time").agg(pl.col(columns).sum()).sort("time")
    if table.is_empty():
        return None
    labels = {"actual": ("What came", BLUE, False), "mean": ("Forecast", ORANGE, False),
              "planned": ("Planned for", GREEN, True)}  # fmt: skip
    lines = tuple(
        _line(label, table["time"].to_list(), table[name].to_list(), colour, dashed)
        for name, (label, colour, dashed) in labels.items()
        if name in columns and table[name].sum()
    )
    words = "Input tokens a second over all models, regions and tiers, by bin."
    return Chart("Demand", "input tokens/s", words, lines)


def _line(
    label: str, times: list[datetime], values: list[float], colour: str, dashed: bool
) -> Line:
    """Return a line with the points at which its value changes, and its end.

    Long lines are thinned: each stretch keeps its largest value, so that peaks stay visible.
    """
    drawn = [i for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
    if len(drawn) > MOST:
        size = ceil(len(drawn) / MOST)
        drawn = [
            max(drawn[i : i + size], key=lambda k: values[k]) for i in range(0, len(drawn), size)
        ]
    last = times[-1] + (times[-1] - times[-2] if len(times) > 1 else timedelta(0))
    return Line(
        label, (*(times[i] for i in drawn), last), (*(values[i] for i in drawn), values[-1]),
        colour, dashed,
    )  # fmt: skip


def costs_of(result: dict[str, Any]) -> tuple[Chart, ...]:
    """Return the chart of costs by policy, cheapest first; empty for a single policy."""
    policies = result.get("policies") or {}
    if len(policies) < 2:
        return ()
    take = (result.get("recommended") or {}).get("policy")
    bars = []
    for name in sorted(policies, key=lambda name: float(policies[name]["cost_usd"])):
        figures = policies[name]
        met = figures.get("meets_slo")
        colour = BLUE if name == take else GREEN if met else RED
        note = f"${digits(figures['cost_usd'])}{'' if met else ', misses a target'}"
        bars.append(Bar(labelled(figures), float(figures["cost_usd"]), note, colour))
    words = "Of the window. Blue: recommended; green: meets every target; red: misses one."
    return (Chart("Cost of each policy", "USD", words, bars=tuple(bars)),)


def drawn(chart: Chart, clock: str = "utc") -> Drawing:
    """Draw a chart."""
    return _bars(chart) if chart.bars else _lines(chart, clock)


def _bars(chart: Chart) -> Drawing:
    """Draw a chart of bars."""
    most = max((bar.value for bar in chart.bars), default=0.0) or 1.0
    room = WIDTH - BESIDE - 130.0
    parts: list[Path | Box | Text] = []
    for i, bar in enumerate(chart.bars):
        y, length = i * BAR + 4.0, room * bar.value / most
        label = bar.label if len(bar.label) <= 54 else f"{bar.label[:52]}..."
        parts += [
            Text(BESIDE - 8, y + 10, label, "end"),
            Box(BESIDE, y + 1, max(length, 1.0), BAR - 7, bar.colour),
            Text(BESIDE + length + 6, y + 10, bar.note),
        ]
    return Drawing(WIDTH, len(chart.bars) * BAR + 8.0, tuple(parts))


def _lines(chart: Chart, clock: str) -> Drawing:
    """Draw a chart of lines over time."""
    begins = min(line.times[0] for line in chart.lines)
    ends = max(line.times[-1] for line in chart.lines)
    most = max(max(line.values) for line in chart.lines) or 1.0
    ticks = _ticks(most)
    top = ticks[-1]
    span = (ends - begins).total_seconds() or 1.0

    def x(moment: datetime) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (moment - begins).total_seconds() / span

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    parts: list[Path | Box | Text] = []
    for tick in ticks:
        parts += [
            Path(((LEFT, y(tick)), (WIDTH - RIGHT, y(tick))), GRID, 0.5),
            Text(LEFT - 6, y(tick) + 3, digits(tick), "end"),
        ]
    for moment, label in _moments(begins, ends, clock):
        parts += [
            Path(((x(moment), y(0)), (x(moment), y(0) + 4)), INK, 0.5),
            Text(x(moment), y(0) + 15, label, "middle"),
        ]
    left = LEFT
    for line in chart.lines:
        points: list[tuple[float, float]] = []
        for moment, value in zip(line.times, line.values, strict=True):
            if points:
                # The value holds until the next moment, so draw a step and not a slope.
                points.append((x(moment), points[-1][1]))
            points.append((x(moment), y(value)))
        parts += [
            Path(tuple(points), line.colour, 1.6, line.dashed),
            Path(((left, 10), (left + 18, 10)), line.colour, 2.0, line.dashed),
            Text(left + 23, 13, line.label),
        ]
        left += 44 + 5.2 * len(line.label)
    return Drawing(WIDTH, HEIGHT, tuple(parts))


def _ticks(most: float) -> list[float]:
    """Return four to six round steps from zero to above ``most``."""
    raw = most / 4
    size = 10 ** floor(log10(raw))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= raw)
    if most >= 4 and step < 1:
        step = 1.0
    # The tolerance avoids one more tick if the division is rounded up.
    return [step * i for i in range(ceil(most / step - 1e-9) + 1)]


def _moments(begins: datetime, ends: datetime, clock: str) -> list[tuple[datetime, str]]:
    """Return at most nine labelled moments on whole hours or days."""
    hours = (ends - begins).total_seconds() / 3600
    step = next((h for h in (1, 2, 3, 6, 12, 24, 48, 168) if hours / h <= 8), ceil(hours / 8))
    first = begins.replace(minute=0, second=0, microsecond=0)
    first = first.replace(hour=first.hour - first.hour % min(step, 24))
    moments = []
    moment = first
    while moment <= ends:
        if moment >= begins:
            moments.append((moment, _label(moment, step, clock)))
        moment += timedelta(hours=step)
    return moments


def _label(moment: datetime, step: int, clock: str) -> str:
    """Return a moment as text: a time of day or a date, or the time since the trace began."""
    if clock != "utc":
        return duration(moment.timestamp()) if moment.timestamp() else "0"
    return f"{moment.day} {moment:%b}" if step >= 24 else f"{moment:%H:%M}"
