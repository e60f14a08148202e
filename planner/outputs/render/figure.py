"""Build the parts that all Plotly figures share: colours, lines, points, axes and margins.

The page's theme (static/js/charts.js) sets the colours of text and grid. Series colours are those
of Okabe and Ito (2008), which stay distinct under the common kinds of colour blindness. Line
styles differ as well.
"""

import json
from collections.abc import Iterable, Sequence
from math import floor, log10
from typing import Any

from plotly.io.json import to_json_plotly

from planner.domain.formats import zone_name

PlotlyData = dict[str, Any]  # JSON that Plotly reads: a figure, or a part of one
Figure = PlotlyData

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY = "#CC79A7", "#56B4E9", "#8A8F98"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY)  # of series, in this order
DASHES = ("solid", "dash", "dot", "dashdot")

MAX_POINTS = 2000  # points per line; a screen has fewer pixels
FEW_REPLICAS = 6  # largest axis on which every whole number has a tick

LOGARITHMIC = {"type": "log", "dtick": 1, "rangemode": "normal"}
STEPS = (1, 2, 5)  # ticks per decade of a short logarithmic axis
_AXIS = {"rangemode": "tozero", "automargin": True}
_RIGHT = {"overlaying": "y", "side": "right", "showgrid": False, "tickmode": "auto"} | _AXIS


def logarithmic(values: Iterable[float | None]) -> PlotlyData:
    """Return a logarithmic axis, with ticks at 1, 2 and 5 if ``values`` span under two decades."""
    known = [value for value in values if value]
    smallest, largest = min(known, default=1.0), max(known, default=1.0)
    if largest / smallest >= 100:
        return dict(LOGARITHMIC)
    first_power = floor(log10(smallest))
    powers = range(first_power, first_power + 4)
    ticks = [step * 10.0**power for power in powers for step in STEPS]
    return LOGARITHMIC | {"tickvals": [tick for tick in ticks if tick <= 2 * largest]}


def line(
    x: Iterable[Any],
    y: Iterable[Any],
    name: str,
    colour: str,
    *,
    dash: str = "solid",
    width: float = 2.0,
    hover: str | None = "%{x}: %{y:,.4~r}",
    **style: Any,
) -> Any:
    """Return a line of a figure; ``hover`` and ``style`` are those of ``_scatter``."""
    look = {"color": colour, "dash": dash, "width": width}
    return _scatter(x, y, name, "lines", hover, {"line": look}, style)


def points(
    x: Iterable[Any],
    y: Iterable[Any],
    name: str,
    colour: str,
    *,
    symbol: str = "circle",
    size: float = 9,
    hover: str | None = "%{x}: %{y:,.4~r}",
    **style: Any,
) -> Any:
    """Return points of a figure; ``hover`` and ``style`` are those of ``_scatter``."""
    look = {"color": colour, "symbol": symbol, "size": size}
    return _scatter(x, y, name, "markers", hover, {"marker": look}, style)


def _scatter(
    x: Iterable[Any],
    y: Iterable[Any],
    name: str,
    mode: str,
    hover: str | None,
    look: PlotlyData,
    style: PlotlyData,
) -> PlotlyData:
    """Return a Plotly trace as plain data.

    Plotly's own objects check each value, which took half of the time of a results page. ``look``
    has the settings of the line or the markers. ``style`` has further settings by their path in the
    trace, such as ``line_shape`` or ``marker_line_width``. ``hover`` is Plotly's template of the
    hover text; None: Plotly's own.
    """
    trace = {"type": "scatter", "x": list(x), "y": list(y), "name": name, "mode": mode, **look}
    if hover is not None:
        trace["hovertemplate"] = hover
    for key, value in style.items():
        *path, last = key.split("_")  # "marker_line_width" sets trace["marker"]["line"]["width"]
        parent = trace
        for part in path:
            parent = parent.setdefault(part, {})
        parent[last] = value
    return trace


# Labels of ticks less than a day apart, less than a month apart, and others.
DATES = [
    {"dtickrange": [None, 86_399_999], "value": "%H:%M\n%-d %b %Y"},
    {"dtickrange": [86_400_000, "M1"], "value": "%-d %b\n%Y"},
    {"dtickrange": ["M1", None], "value": "%b %Y"},
]
# Times of a trace without dates count from 1 January 1970, so its days are days of that year.
TRACE_TIME = "trace time"
DAYS = [
    {"dtickrange": [None, 86_399_999], "value": "%H:%M\nDay %-j"},
    {"dtickrange": [86_400_000, None], "value": "Day %-j"},
]


def figure(
    traces: Sequence[Any],
    *,
    height: int,
    x: str = "",
    y: str = "",
    right: str = "",
    together: bool = False,
    plain: bool = False,
    **layout: Any,
) -> Figure:
    """Return traces with the axes and margins of all charts, as plain data for JSON.

    ``x``, ``y`` and ``right`` are the titles of the axes. ``xaxis``, ``yaxis`` and ``yaxis2`` of
    ``layout`` override their settings, and ``bare`` removes the title of x. With ``together``, the
    hover text shows all lines at once. ``plain`` states that the traces have no NumPy values, so
    that nothing need be converted, which is much faster.
    """
    axes = {
        "xaxis": {"title": {"text": x}, "showgrid": False, "automargin": True},
        "yaxis": {"title": {"text": y}} | _AXIS,
    }
    if x == TRACE_TIME:  # an axis of days of the trace
        axes["xaxis"] |= {"tickformatstops": DAYS, "hoverformat": "Day %-j, %H:%M"}
    elif x == zone_name():  # an axis of dates
        axes["xaxis"] |= {"tickformatstops": DATES, "hoverformat": f"%-d %b %Y, %H:%M {x}"}
    if "tickformatstops" in axes["xaxis"]:
        layout["meta"] = x
    if right:
        axes["yaxis2"] = {"title": {"text": right}} | _RIGHT
    if layout.pop("bare", False):
        axes["xaxis"] |= {"title": {"text": ""}, "automargin": False}
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    if together:
        legend["traceorder"] = "normal"
        layout["hovermode"] = "x unified"
    for name, axis in axes.items():
        axes[name] = axis | layout.pop(name, {})
    all_layout = {
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 8, "b": 40},
        "legend": legend,
        **axes,
        **layout,
    }
    chart: Figure = {"data": list(traces), "layout": all_layout}
    return chart if plain else json.loads(to_json_plotly(chart))
