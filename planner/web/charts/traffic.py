"""Draw the traffic of a trace: stacked rates, the week, lengths and days.

Figures are plain data: plotly.py would check each of the many points of the page.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import polars as pl

from planner.domain.formats import local, when
from planner.domain.serialise import moment as instant
from planner.domain.trace_statistics.figures import Day, Lengths, LostBins
from planner.domain.trace_statistics.volumes import OTHERS
from planner.domain.traffic.window import DAY_S, UTC_CLOCK
from planner.outputs.render.figure import (
    BLUE,
    GREY,
    ORANGE,
    PALETTE,
    Figure,
    PlotlyData,
    figure,
)
from planner.web.charts.over_time import axis_title

LOST = "rgba(213, 94, 0, 0.30)"
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
MOST_LENGTHS = 0.999  # end of the CDF: single longer requests would stretch the axis


def colour_of(label: str, place: int) -> str:
    """Return the colour of the label of rank ``place``, or grey for the sum of other labels."""
    if label.endswith(f" {OTHERS}"):
        return GREY
    return PALETTE[place % (len(PALETTE) - 1)]  # without the last one, which is grey


def rate_figure(
    rates: pl.DataFrame,
    total: pl.DataFrame,
    field: str,
    *,
    unit: str,
    clock: str,
    lost: Sequence[LostBins] = (),
) -> Figure:
    """Draw the ``rates`` of all labels stacked, and a line of their sum, ``total``.

    ``field`` is the column with the rates. Both tables also have the columns place, label, start_s
    and seconds. Times of ``lost`` data are shaded.
    """
    rates_by_label = rates.sort("place", "start_s").partition_by("place", as_dict=True)
    common = {"mode": "lines", "hovertemplate": f"%{{y:,.4~r}} {unit}"}
    is_stacked = len(rates_by_label) > 1
    lines: list[PlotlyData] = []
    for label_rates in rates_by_label.values():
        label = str(label_rates["label"][0])
        colour = colour_of(label, int(label_rates["place"][0]))
        look: PlotlyData
        if is_stacked:  # a band on those of the labels before it; else a line over a pale area
            band = {"line": {"width": 0, "color": colour}, "fillcolor": f"{colour}c0"}
            look = {"name": label, "stackgroup": "all"} | band
        else:
            area = {"line": {"width": 1.2, "color": colour}, "fillcolor": f"{colour}66"}
            look = {"name": "Total", "fill": "tozeroy"} | area
        lines.append(_rate_trace(label_rates, field, clock) | common | look)
    if is_stacked:
        look = {"name": "Total", "line": {"width": 1, "color": GREY}}
        lines.append(_rate_trace(total.sort("start_s"), field, clock) | common | look)
    shapes = [
        {
            "type": "rect", "xref": "x", "yref": "paper", "y0": 0, "y1": 1, "layer": "below",
            "x0": _moment(span.start_s, clock), "x1": _moment(span.end_s, clock),
            "fillcolor": LOST, "line": {"width": 1, "color": LOST},
        }
        for span in lost
    ]  # fmt: skip
    if shapes:  # Plotly's shapes have no legend, so add an empty line for its entry
        lines.append({
            "type": "scatter", "x": [None], "y": [None], "mode": "markers",
            "marker": {"color": LOST, "symbol": "square", "size": 12},
            "name": "Outage: not demand", "hoverinfo": "skip",
        })  # fmt: skip
    return figure(
        lines, plain=True, height=300, x=axis_title(clock), y=unit, together=True, shapes=shapes,
        showlegend=len(lines) > 1, xaxis={"type": "date"},
    )  # fmt: skip


def _rate_trace(amounts: pl.DataFrame, field: str, clock: str) -> PlotlyData:
    """Return the column ``field`` per second as a trace of Plotly.

    All rows are ``seconds`` long. The trace has only the first time and the step between times, to
    keep the page small.
    """
    per_s = amounts[field] / amounts["seconds"]
    return {
        "type": "scatter",
        "x0": _moment(float(amounts["start_s"][0]), clock),
        "dx": 1000 * float(amounts["seconds"][0]),  # Plotly counts time in ms
        "y": [None if rate is None else float(f"{rate:.4g}") for rate in per_s.to_list()],
    }


def _moment(epoch_s: float, clock: str) -> str:
    """Return a time as ISO text for an axis."""
    moment = instant(epoch_s)
    return f"{local(moment) if clock == UTC_CLOCK else moment:%Y-%m-%dT%H:%M:%S}"


def week_figure(
    weekday_hour: Sequence[Sequence[float | None]], *, unit: str, clock: str, start_s: float
) -> Figure:
    """Draw the mean rate by weekday and hour (7 x 24, in UTC) as a heat map.

    Hours are those of the reader's zone, with its offset at ``start_s``, unless the offset is not
    of whole hours.
    """
    if clock == UTC_CLOCK:
        names = list(WEEKDAYS)
        week, zone = _local_week(weekday_hour, start_s)
        hours = f"hour of the day ({zone})"
    else:
        names = [f"Day {n}" for n in range(1, 8)]
        week = weekday_hour
        hours = "hour since the trace began, by day"
    cells: dict[str, list[float | None]] = {}  # rates by hour of each day with a known rate
    for name, day in zip(names, week, strict=True):
        if any(rate is not None for rate in day):
            cells[name] = [None if rate is None else float(f"{rate:.4g}") for rate in day]
    rates = [rate for day in cells.values() for rate in day if rate is not None]
    heat = {
        "type": "heatmap", "x": list(range(24)), "y": list(cells), "z": list(cells.values()),
        "zmin": 0, "zmax": max(rates),
        "colorscale": [[0, f"{BLUE}08"], [1, BLUE]], "xgap": 1, "ygap": 1,
        "hovertemplate": f"%{{y}} %{{x}}:00: %{{z:,.4~r}} {unit}<extra></extra>",
        "colorbar": {"thickness": 10, "outlinewidth": 0},
    }  # fmt: skip
    return figure(
        [heat], plain=True, height=80 + 26 * len(cells), x=hours, y="", showlegend=False,
        xaxis={"dtick": 3}, yaxis={"autorange": "reversed", "rangemode": "normal"},
    )  # fmt: skip


def _local_week(
    week: Sequence[Sequence[float | None]], start_s: float
) -> tuple[Sequence[Sequence[float | None]], str]:
    """Return (the rates of a week by day and hour of the reader's zone, the zone's name).

    ``week`` has them by day and hour in UTC. It is returned as it is, with "UTC", if the zone's
    offset at ``start_s`` is not of whole hours.
    """
    begins = local(instant(start_s))
    offset_h, rest_s = divmod(round((begins.utcoffset() or timedelta()).total_seconds()), 3600)
    if rest_s:
        return week, "UTC"
    hours = [rate for day in week for rate in day]
    # The week is a ring: local hour h is UTC hour h - offset.
    first = -offset_h % len(hours)
    rotated = hours[first:] + hours[:first]
    days = [rotated[i : i + 24] for i in range(0, len(rotated), 24)]
    _, _, zone = when(begins).rpartition(" ")
    return days, zone


def lengths_figure(
    lengths: Sequence[Lengths], levels: Sequence[float], places: Mapping[str, int]
) -> Figure:
    """Draw by label the share of requests (y) up to each length in tokens (x, logarithmic).

    ``levels`` are the shares of the quantiles in ``lengths``, ``places`` the ranks of labels.
    """
    lines = []
    for length in lengths:
        tokens, shares = [], []
        for quantile, level in zip(length.quantiles, levels, strict=True):
            if level <= MOST_LENGTHS:
                tokens.append(max(quantile, 1))
                shares.append(level)
        colour = colour_of(length.label, places.get(length.label, 0))
        lines.append(
            {
                "type": "scatter", "mode": "lines", "name": length.label, "x": tokens, "y": shares,
                "line": {"width": 1.6, "color": colour, "shape": "hv"},
                "hovertemplate": "%{y:.0%} have at most %{x:,.0f}",
            }
        )  # fmt: skip
    return figure(
        lines, plain=True, height=280, x="tokens per request", y="share of requests",
        showlegend=len(lines) > 1, xaxis={"type": "log", "dtick": 1},
        yaxis={"tickformat": ".0%", "range": [0, 1]},
    )  # fmt: skip


def days_figure(days: Sequence[Day], unit: str, clock: str) -> Figure:
    """Draw the volume of each day: the busiest is highlighted, unranked days are grey.

    ``unit`` is an attribute of a day, such as requests or input_tokens. Without dates, days
    are numbered from 1.
    """
    ranked_days = sum(day.rank is not None for day in days)
    colours = {"busiest day": ORANGE, "other days": BLUE, "too few data": GREY}
    kinds, texts = [], []  # of each day
    for day in days:
        if day.rank is None:
            kinds.append("too few data")
            texts.append("too few data to rank it")
        else:
            kinds.append("busiest day" if day.rank == 1 else "other days")
            texts.append(f"rank {day.rank} of {ranked_days}")
    if clock == UTC_CLOCK:
        dates: list[object] = [instant(day.start_s).date() for day in days]
    else:
        dates = [round(day.start_s / DAY_S) + 1 for day in days]
    amounts = [getattr(day, unit, None) for day in days]
    rounded = [None if amount is None else float(f"{amount:.6g}") for amount in amounts]
    bars = []
    for kind in dict.fromkeys(kinds):
        # Each kind has all days, so that its bars are as wide as the others.
        of_kind = [
            amount if kind_of_day == kind else None
            for amount, kind_of_day in zip(rounded, kinds, strict=True)
        ]
        bars.append({
            "type": "bar", "name": kind, "marker": {"color": colours[kind]},
            "x": dates, "y": of_kind, "text": texts, "textposition": "none",
            "hovertemplate": f"%{{y:,.4~s}} {unit.replace('_', ' ')}, %{{text}}<extra></extra>",
        })  # fmt: skip
    x = "UTC" if clock == UTC_CLOCK else "day of the trace"
    return figure(
        bars, plain=True, height=220, x=x, y=f"{unit.replace('_', ' ')} a day", barmode="overlay",
        xaxis={"type": "date"} if clock == UTC_CLOCK else {},
    )  # fmt: skip
