"""Draw a chart of a report with Plotly."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import cycle
from textwrap import wrap
from typing import Any

from planner.domain.formats import local, zone_name
from planner.domain.report import Axis, Chart, Form, Role, Series, Shape, Value
from planner.outputs.render.drawing import OTHERS, colour_of
from planner.outputs.render.figure import (
    BLUE,
    GREEN,
    GREY,
    PURPLE,
    SKY,
    TRACE_TIME,
    Figure,
    PlotlyData,
    figure,
    logarithmic,
)

DASHES = {Role.BASELINE: "dash", Role.LIMIT: "dot"}
WIDTHS = {Role.RECOMMENDED: 3.0, Role.LIMIT: 1.5, Role.BASELINE: 1.5, Role.DEMAND: 1.0}
BAND_OPACITY = {Role.SHORTFALL: 0.5, Role.RISK: 0.9, Role.FORECAST: 0.18}  # of others: 0.22
AREAS = (BLUE, SKY, PURPLE, GREEN, GREY)
HEIGHT, SMALL, HALF = 290, 280, 152  # heights of charts in px
AROUND_BARS, BAR = 90, 36  # px of axis and margins, and of a bar with two lines of a name
LABEL = 32  # characters in a line of a bar's name, so that a phone shows all of it
PER_CENT = (Form.SHARE, Form.CHANGE)
FEW = 5  # largest count for which every whole number has a tick


def figure_of(chart: Chart, clock: str = "utc") -> Figure:
    """Return a chart as data and layout of Plotly; ``clock`` is "utc" or "relative"."""
    only_areas = all(series.shape is Shape.AREA for series in chart.series)
    other_colours = cycle(AREAS if only_areas else OTHERS)
    traces: list[PlotlyData] = []
    for series in chart.series:
        traces += _traces(series, colour_of(series) or next(other_colours), chart, clock)
    all_x = [x for series in chart.series for x in series.x]
    has_times = any(isinstance(x, datetime) for x in all_x)
    height = HEIGHT
    if chart.half:
        height = HALF
    elif chart.small:
        height = SMALL
    # The title of the chart has the unit of y.
    x_title, y_title = chart.x.full, chart.y.title
    if chart.horizontal:  # bars to the right: x has the values, and y the names
        names = list(dict.fromkeys(map(str, all_x)))
        axes = {
            "xaxis": _axis(chart.y),
            "yaxis": {
                "autorange": "reversed",
                "type": "category",
                "automargin": True,
                "tickvals": names,
                "ticktext": ["<br>".join(wrap(name, LABEL)) for name in names],
            },
        }
        x_title, y_title = chart.y.unit, ""
        height = max(height, AROUND_BARS + BAR * len(names))
    else:
        axes = _upright_axes(chart, all_x)
    if has_times:
        x_title = TRACE_TIME if clock == "relative" else zone_name()
    layout: PlotlyData = {
        **axes, "showlegend": len(chart.series) > 1, "bare": chart.bare,
        "barmode": "stack" if chart.stacked or chart.horizontal else "group",
    }  # fmt: skip
    layout |= {"height": height, "together": has_times}
    return figure(traces, plain=True, x=x_title, y=y_title, **layout)


def _upright_axes(chart: Chart, all_x: Sequence[Value]) -> PlotlyData:
    """Return the axes of a chart over x, by their names in the layout."""
    xaxis = _axis(chart.x, all_x)
    if any(isinstance(x, str) for x in all_x):  # names such as 2024-05 would be read as dates
        xaxis["type"] = "category"
    yaxis = _axis(chart.y, [y for series in chart.series for y in series.y])
    # Series may be stacked, so the highest point is at most the sum of their maxima.
    maxima = [max((y for y in series.y if y), default=0.0) for series in chart.series]
    if chart.y.form is Form.COUNT and sum(maxima) <= FEW:
        yaxis["dtick"] = 1  # a tick for every whole number
    axes: PlotlyData = {"xaxis": xaxis, "yaxis": yaxis}
    if chart.right:
        axes["yaxis2"] = _axis(chart.right) | {
            "title": {"text": chart.right.full}, "overlaying": "y", "side": "right",
            "showgrid": False, "rangemode": "tozero", "automargin": True,
        }  # fmt: skip
    return axes


def _axis(axis: Axis, values: Sequence[Any] = ()) -> PlotlyData:
    """Return an axis's own settings; ``values`` decide the ticks of a logarithmic one."""
    settings: PlotlyData = logarithmic(values) if axis.log else {}
    if not axis.zero:
        settings |= {"rangemode": "normal"}
    if axis.ticks:
        settings |= {"tickvals": list(axis.ticks), "tickformat": ",~r"}
    if axis.top is not None:
        settings |= {"range": [0, axis.top]}
    if axis.form in PER_CENT:
        settings |= {"tickformat": "+.0%" if axis.form is Form.CHANGE else ".0%"}
    return settings


def _traces(series: Series, colour: str, chart: Chart, clock: str) -> Iterator[PlotlyData]:
    """Yield a series as one trace of Plotly, or two if it is a band: lower and upper edge.

    Settings of all shapes come first, then those of the shape of the series.
    """
    x = [_x_value(value, clock) for value in series.x]
    has_times = any(isinstance(value, datetime) for value in series.x[:1])
    axis = chart.right if series.right and chart.right else chart.y
    trace: PlotlyData = {
        "x": x, "y": list(series.y), "name": series.label,
        "hovertemplate": _hover(series, axis, together=has_times),
    }  # fmt: skip
    if series.notes:
        trace["customdata"] = list(series.notes)
    if series.right:
        trace["yaxis"] = "y2"
    if series.shape is Shape.BAR:
        trace |= {"type": "bar", "marker": {"color": colour}}
        if chart.horizontal:
            trace |= {"orientation": "h", "x": trace["y"], "y": x}
        yield trace
        return
    trace |= {"type": "scatter", "mode": "lines", "legendgroup": series.label}
    match series.shape:
        case Shape.POINTS:
            symbol = "diamond" if series.role is Role.MEASURED else "circle"
            marker = {"color": colour, "size": 9, "symbol": symbol}
            yield trace | {"mode": "markers", "marker": marker}
        case Shape.BAND:
            yield from _band(trace, series, _line_style(series, colour))
        case Shape.AREA:
            stacked = {"stackgroup": "all", "fillcolor": _with_opacity(colour, 0.7)}
            yield trace | stacked | {"line": {"color": colour, "width": 0.5, "shape": "hv"}}
        case _:
            trace |= _line_look(series, colour)
            if has_times and x[0] == x[-1]:  # a vertical line has its name beside it
                trace |= {"mode": "lines+text", "showlegend": False}
                trace |= _label_beside(x[0], series, chart, clock)
            yield trace


def _line_style(series: Series, colour: str) -> PlotlyData:
    """Return the colour, width, dash and shape of a line."""
    return {
        "color": colour, "width": WIDTHS.get(series.role, 2.0),
        "dash": DASHES.get(series.role, "solid"),
        "shape": "hv" if series.shape is Shape.STEP else "linear",
    }  # fmt: skip


def _line_look(series: Series, colour: str) -> PlotlyData:
    """Return the style of a line, its markers, and the fill below demand."""
    look: PlotlyData = {"line": _line_style(series, colour)}
    if series.shape is Shape.MARKED:
        look |= {"mode": "lines+markers", "marker": {"color": colour, "size": 7}}
    if series.role is Role.DEMAND:
        look |= {"fill": "tozeroy", "fillcolor": _with_opacity(colour, 0.34)}
    return look


def _band(trace: PlotlyData, series: Series, line: PlotlyData) -> Iterator[PlotlyData]:
    """Yield the lower edge of a band, then the upper edge with the fill between both."""
    # A forecast has visible edges, so that it is seen over other areas.
    edge = {"width": 1.0, "dash": "dot"} if series.role is Role.FORECAST else {"width": 0}
    edge_trace = trace | {"line": line | edge, "hoverinfo": "skip", "hovertemplate": None}
    yield edge_trace | {"y": list(series.low), "showlegend": False}
    colour = line["color"]
    opacity = BAND_OPACITY.get(series.role, 0.22)
    fill: PlotlyData = {"fill": "tonexty", "fillcolor": _with_opacity(colour, opacity)}
    if series.role is Role.DEFERRABLE:  # striped, because it is stacked on other demand
        stripes = {"shape": "/", "size": 6, "solidity": 0.2, "fgcolor": colour}
        fill = {"fill": "tonexty", "fillpattern": stripes}
    yield edge_trace | fill


def _label_beside(x: Any, series: Series, chart: Chart, clock: str) -> PlotlyData:
    """Return the name beside a vertical line: to the right if enough points are there."""
    x_values = [_x_value(value, clock) for other in chart.series for value in other.x]
    points_to_the_right = sum(value > x for value in x_values)
    if points_to_the_right > len(x_values) / 4:
        return {"text": ["", f"<br>&nbsp;{series.label}"], "textposition": "bottom right"}
    return {"text": ["", f"<br>{series.label}&nbsp;"], "textposition": "bottom left"}


def _hover(series: Series, axis: Axis, *, together: bool) -> str:
    """Return Plotly's template of the hover text of a series.

    With ``together``, one text shows all series below their x. Otherwise the template has the x.
    """
    sizes = [abs(y) for y in series.y if isinstance(y, int | float) and y]
    if axis.form is Form.SHARE:
        y_format = ":.1%"
    elif axis.form is Form.CHANGE:
        y_format = ":+.1%"
    elif max(sizes, default=0.0) < 1000:
        y_format = ":.3~r"  # as in tables
    else:
        y_format = ":,.0f" if min(sizes) >= 10 else ":,.1~f"
    x_text = "" if together else "%{x}: "
    unit = f" {axis.unit}" if axis.unit and axis.form not in PER_CENT else ""
    note = ", %{customdata}" if series.notes else ""
    return f"{x_text}%{{y{y_format}}}{unit}{note}"


def _x_value(value: Value, clock: str) -> Any:
    """Return an x value as Plotly reads it: a time as text in the reader's time zone.

    On the clock "relative", times count from the epoch, so no time zone applies.
    """
    if not isinstance(value, datetime):
        return value
    moment = value.astimezone(UTC) if clock == "relative" else local(value)
    return moment.strftime("%Y-%m-%dT%H:%M:%S")


def _with_opacity(colour: str, opacity: float) -> str:
    """Return a colour #rrggbb with an opacity, as rgba()."""
    red, green, blue = bytes.fromhex(colour.removeprefix("#"))
    return f"rgba({red}, {green}, {blue}, {opacity})"
