"""Draw replicas and cost of several runs, over time or over hours since each window's start."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle

import polars as pl

from planner.outputs.render.figure import DASHES, GREY, PALETTE, Figure, PlotlyData, figure, line
from planner.web.charts.over_time import axis_title, steps, times

HOUR_MS = 3.6e6


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """The ready replicas of a run over time.

    ``table`` has columns time, ready and, where known, usd_per_hour. ``base`` marks the run that
    the others are compared with. ``added`` marks replicas above those of the course before it,
    which the chart fills.
    """

    label: str
    table: pl.DataFrame
    base: bool = False
    added: bool = False


def course_figure(
    courses: Sequence[Course], value: str, unit: str, *, clock: str, apart: bool
) -> Figure | None:
    """Draw ``value`` of each run as a step line; None if fewer than two runs have it.

    With ``apart``, the runs have different windows, so each line begins at hour 0. The base is a
    dashed grey line, and a course of added replicas fills the space above the course before it.
    """
    drawn = [course for course in courses if value in course.table.columns]
    if len(drawn) < 2:
        return None
    lines = []
    has_base = any(course.base for course in drawn)
    line_styles = zip(cycle(PALETTE), cycle(DASHES))
    for course in drawn:
        colour, dash = (GREY, "dash") if course.base else next(line_styles)
        style: PlotlyData = {"dash": dash, "width": 3.0 if has_base and not course.base else 2.0}
        if course.added:
            style = {"width": 0.0, "fill": "tonexty"}
        rows = steps(course.table, "time", value, every="1h")
        x_values = times(rows, "time", clock)
        if apart:
            epoch_ms = rows["time"].dt.epoch("ms")
            x_values = ((epoch_ms - epoch_ms.min()) / HOUR_MS).round(4).to_list()
        lines.append(
            line(
                x_values,
                rows[value].round(3),
                course.label,
                colour,
                line_shape="hv",
                hover=f"%{{y:,.4~r}} {unit}",
                **style,
            )
        )
    x = "hours from the start of each window" if apart else axis_title(clock)
    if has_base:  # the text above says what it shows
        return figure(lines, height=220, x=x, bare=not apart, together=True)
    return figure(lines, height=340, x=x, y=unit, together=True)
