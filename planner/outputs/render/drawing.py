"""Draw the charts of a report as lines, boxes and texts at positions, for SVG and PDF alike."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import cycle
from math import ceil, floor, log10

from planner.domain.formats import digits, local, when
from planner.domain.report import Axis, Chart, Form, Role, Series, Shape, Value

WIDTH, HEIGHT = 700.0, 220.0  # points
LEFT, RIGHT, TOP, BOTTOM = 52.0, 22.0, 24.0, 30.0  # margins around the axes
PLOT_WIDTH = WIDTH - LEFT - RIGHT
BAR, LABEL = 19.0, 250.0  # height of a horizontal bar's row; width of its label
NOTE = 130.0  # width of the note behind a horizontal bar
MOST_CHARACTERS = 54  # of the label of a horizontal bar
SIZE = 9.0  # font size
BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#8A8F98"
SKY, PURPLE = "#56B4E9", "#CC79A7"
INK, GRID = "#333b46", "#d7dbe0"
COLOURS = {
    Role.DEMAND: GREY, Role.FORECAST: ORANGE, Role.RECOMMENDED: BLUE, Role.CAPACITY: GREEN,
    Role.BASELINE: GREY, Role.LIMIT: RED, Role.SHORTFALL: RED, Role.MEASURED: ORANGE,
    Role.DEFERRABLE: GREY, Role.RISK: ORANGE,
}  # fmt: skip
OTHERS = (
    BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY,
    "#A3A500", "#7E57C2", "#8C564B", "#0F8B8D", "#D6336C",
)  # fmt: skip
DASHED = (Role.BASELINE, Role.LIMIT)
LABELS = 12  # most categories with a label on the x axis


@dataclass(frozen=True, slots=True)
class Path:
    """A line through points."""

    points: tuple[tuple[float, float], ...]
    colour: str
    width: float = 1.0
    dashed: bool = False
    filled: bool = False  # with a pale colour, instead of a line


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
    """Shapes on an area of ``width`` by ``height`` points; y grows downwards."""

    width: float
    height: float
    parts: tuple[Path | Box | Text, ...]


def draw_chart(chart: Chart, clock: str = "utc") -> Drawing:
    """Draw a chart; ``clock`` is "utc", or "relative" for a trace without dates."""
    return _horizontal(chart) if chart.horizontal else _over_x(chart, clock)


def colour_of(series: Series) -> str | None:
    """Return the colour of a series, its own or that of its role; None if it has neither."""
    if series.colour is not None:
        return OTHERS[series.colour % len(OTHERS)]
    if series.role is Role.FORECAST and series.shape is Shape.BAND:
        return SKY
    return COLOURS.get(series.role)


def _series_with_colours(chart: Chart) -> Iterator[tuple[Series, str]]:
    """Yield the series of a chart, each with its colour; those without one get OTHERS in turn."""
    other_colours = cycle(OTHERS)
    for series in chart.series:
        yield series, colour_of(series) or next(other_colours)


def _horizontal(chart: Chart) -> Drawing:
    """Draw horizontal bars, shortest first, that stack the values of series with one label."""
    stacks: dict[str, list[tuple[float, str]]] = {}
    notes: dict[str, str] = {}
    for series, colour in _series_with_colours(chart):
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            stacks.setdefault(str(x), []).append((y or 0.0, colour))
            if series.notes:
                notes[str(x)] = series.notes[i]
    totals = {name: sum(value for value, _ in stack) for name, stack in stacks.items()}
    longest = max(totals.values(), default=0.0) or 1.0
    parts: list[Path | Box | Text] = []
    for i, name in enumerate(sorted(stacks, key=totals.__getitem__)):
        y, x_end = i * BAR + 4.0, LABEL
        label = name if len(name) <= MOST_CHARACTERS else f"{name[: MOST_CHARACTERS - 2]}..."
        parts.append(Text(LABEL - 8, y + 10, label, "end"))
        for value, colour in stacks[name]:
            length = max((WIDTH - LABEL - NOTE) * value / longest, 1.0)
            parts.append(Box(x_end, y + 1, length, BAR - 7, colour))
            x_end += length
        parts.append(Text(x_end + 6, y + 10, notes.get(name, digits(totals[name]))))
    return Drawing(WIDTH, len(stacks) * BAR + 8.0, tuple(parts))


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis: the positions of values in points, and its ticks as (position, label)."""

    position: Callable[[Value], float]
    ticks: tuple[tuple[float, str], ...]


def _over_x(chart: Chart, clock: str) -> Drawing:
    """Draw lines, steps, bands, areas, points and upright bars over an x axis."""
    x = _x_scale(chart, clock)
    left = _y_scale([series for series in chart.series if not series.right], chart.y)
    right = _y_scale([series for series in chart.series if series.right], chart.right or chart.y)
    parts: list[Path | Box | Text] = [*_axes(x, left)]
    bars = [series for series in chart.series if series.shape is Shape.BAR]
    stacked = [0.0] * max((len(series.x) for series in bars), default=0)
    below: tuple[float | None, ...] = ()  # upper edge of the areas drawn so far
    for series, colour in _series_with_colours(chart):
        y = right if series.right else left
        smallest_y = min((value or 0.0 for value in series.y), default=0.0)
        if series.shape is Shape.BAR:
            parts += _bars(series, x, y, colour, stacked, len(bars) if not chart.stacked else 1)
        elif series.shape is Shape.POINTS:
            for px, py in _points(series, x, y):
                parts.append(Box(px - 2.5, py - 2.5, 5.0, 5.0, colour))
        elif series.shape is Shape.AREA:
            lower = below or (0.0,) * len(series.y)
            edge = tuple((v or 0.0) + (w or 0.0) for v, w in zip(series.y, lower, strict=True))
            high, low = _points(series, x, y, edge), _points(series, x, y, lower)
            parts.append(Path((*high, *reversed(low)), colour, filled=True))
            below = edge
        elif series.shape is Shape.BAND:
            high, low = _points(series, x, y), _points(series, x, y, series.low)
            parts.append(Path((*high, *reversed(low)), colour, filled=True))
        elif chart.y.top is not None and smallest_y > chart.y.top:
            continue  # all values are beyond the upper end of the axis
        elif points := _points(series, x, y):
            width = 2.4 if series.role is Role.RECOMMENDED else 1.6
            parts.append(Path(tuple(points), colour, width, dashed=series.role in DASHED))
    if len(chart.series) > 1:
        parts += _legend(chart)
    return Drawing(WIDTH, HEIGHT, tuple(parts))


def _axes(x: Scale, y: Scale) -> Iterator[Path | Text]:
    """Yield the grid lines of the y axis, the ticks of the x axis, and the labels of both."""
    for position, label in y.ticks:
        yield Path(((LEFT, position), (WIDTH - RIGHT, position)), GRID, 0.5)
        yield Text(LEFT - 6, position + 3, label, "end")
    floor_y = HEIGHT - BOTTOM
    for position, label in x.ticks:
        yield Path(((position, floor_y), (position, floor_y + 4)), INK, 0.5)
        yield Text(position, floor_y + 15, label, "middle")


def _legend(chart: Chart) -> Iterator[Path | Text]:
    """Yield the legend above the chart, in two lines if the names do not fit in one."""
    widths = [34 + 4.6 * len(series.label) for series in chart.series]
    x, y = LEFT, 10.0 if LEFT + sum(widths) <= WIDTH else 4.0
    for (series, colour), width in zip(_series_with_colours(chart), widths, strict=True):
        if LEFT < x > WIDTH - width:
            x, y = LEFT, y + 12
        yield Path(((x, y), (x + 18, y)), colour, 2.0, series.role in DASHED)
        yield Text(x + 23, y + 3, series.label)
        x += width


def _points(
    series: Series, x: Scale, y: Scale, values: Sequence[float | None] = ()
) -> list[tuple[float, float]]:
    """Return the points of a series without its gaps; steps get corner points.

    ``values`` are y values that replace those of the series, such as the lower edge of a band.
    """
    points: list[tuple[float, float]] = []
    for x_value, value in zip(series.x, values or series.y, strict=True):
        if value is None:
            continue
        position = x.position(x_value)
        if points and series.shape in (Shape.STEP, Shape.AREA):
            # The value holds until the next moment, so draw a step and not a slope.
            points.append((position, points[-1][1]))
        points.append((position, y.position(value)))
    return points


def _bars(
    series: Series, x: Scale, y: Scale, colour: str, stacked: list[float], side_by_side: int
) -> Iterator[Box]:
    """Yield the upright bars of a series, one per category.

    ``side_by_side`` is the number of series with a bar in each category; 1: bars are stacked.
    ``stacked`` is the sum of the bars of each category so far, increased in place.
    """
    category_width = 0.7 * PLOT_WIDTH / max(len(stacked), 1)
    width = category_width / side_by_side
    for i, (x_value, value) in enumerate(zip(series.x, series.y, strict=True)):
        low = stacked[i] if side_by_side == 1 else 0.0
        top, bottom = y.position(low + (value or 0.0)), y.position(low)
        left = x.position(x_value) - category_width / 2
        yield Box(left, top, width, bottom - top, colour)
        if side_by_side == 1:
            stacked[i] += value or 0.0


def _x_scale(chart: Chart, clock: str) -> Scale:
    """Return the scale of the x axis: times, categories or numbers."""
    values = [x for series in chart.series for x in series.x if x is not None]
    moments = [x for x in values if isinstance(x, datetime)]
    if moments:
        begins, ends = local(min(moments)), local(max(moments))
        span = (ends - begins).total_seconds() or 1.0

        def position(value: Value) -> float:
            assert isinstance(value, datetime)
            return LEFT + PLOT_WIDTH * (value - begins).total_seconds() / span

        ticks = _labelled_times(begins, ends, clock)
        return Scale(position, tuple((position(moment), label) for moment, label in ticks))
    if any(isinstance(x, str) for x in values):
        names = list(dict.fromkeys(str(x) for x in values))
        every = ceil(len(names) / LABELS)
        centres = {name: LEFT + PLOT_WIDTH * (i + 0.5) / len(names) for i, name in enumerate(names)}
        labelled = tuple((centres[name], name) for name in names[::every])
        return Scale(lambda value: centres[str(value)], labelled)
    return _number_scale([float(x) for x in values], chart.x.log)  # type: ignore[arg-type]


def _number_scale(values: Sequence[float], log: bool) -> Scale:
    """Return the scale of an x axis of numbers; it begins at zero unless it is logarithmic."""
    highest = max(values, default=1.0) or 1.0
    if log:
        lowest = min(value for value in values if value > 0)
        low, span = log10(lowest), (log10(highest / lowest) or 1.0)
        marks = [10.0**n for n in range(floor(low), ceil(log10(highest)) + 1)]
        marks = [mark for mark in marks if lowest <= mark <= highest] or [lowest, highest]

        def log_position(value: Value) -> float:
            return LEFT + PLOT_WIDTH * (log10(float(value)) - low) / span  # type: ignore[arg-type]

        return Scale(log_position, tuple((log_position(mark), digits(mark)) for mark in marks))

    def position(value: Value) -> float:
        return LEFT + PLOT_WIDTH * float(value) / highest  # type: ignore[arg-type]

    ticks = [tick for tick in _ticks(highest) if tick <= highest]
    return Scale(position, tuple((position(tick), digits(tick)) for tick in ticks))


def _y_scale(series: Sequence[Series], axis: Axis) -> Scale:
    """Return the y scale, from zero (or a negative value) to above the largest value."""
    values = [y for one_series in series for y in one_series.y if y is not None]
    for shape in (Shape.BAR, Shape.AREA):
        stack = [one_series.y for one_series in series if one_series.shape is shape]
        if len(stack) > 1:  # these reach the sum
            values += [sum(y or 0.0 for y in ys) for ys in zip(*stack, strict=True)]
    largest = axis.top or max(values, default=0.0) or 1.0
    ticks = _ticks(largest)
    smallest = min([0.0, *values])
    span = ticks[-1] - smallest

    def position(value: Value) -> float:
        inside = min(float(value), ticks[-1])  # type: ignore[arg-type]
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (inside - smallest) / span

    def label(tick: float) -> str:
        return f"{tick:.0%}" if axis.form in (Form.SHARE, Form.CHANGE) else digits(tick)

    return Scale(position, tuple((position(tick), label(tick)) for tick in ticks))


def _ticks(most: float) -> list[float]:
    """Return four to six evenly spaced, round ticks from zero to above ``most``."""
    least_step = most / 4
    size = 10 ** floor(log10(least_step))
    round_steps = [size * factor for factor in (1, 2, 2.5, 5, 10)]
    step = next(step for step in round_steps if step >= least_step)
    if most >= 4 and step < 1:
        step = 1.0
    # The tolerance avoids one more tick if the division is rounded up.
    return [step * i for i in range(ceil(most / step - 1e-9) + 1)]


def _labelled_times(begins: datetime, ends: datetime, clock: str) -> list[tuple[datetime, str]]:
    """Return at most nine (time, label) on whole hours or days, for the ticks of an axis."""
    hours = (ends - begins).total_seconds() / 3600
    fitting = (step for step in (1, 2, 3, 6, 12, 24, 48, 168) if hours / step <= 8)
    step = next(fitting, ceil(hours / 8))  # hours between ticks
    first = begins.replace(minute=0, second=0, microsecond=0)
    first = first.replace(hour=first.hour - first.hour % min(step, 24))
    times = []
    moment = first
    while moment <= ends:
        if clock != "utc":  # days of the trace
            day, _, time_of_day = when(moment, clock).partition(", ")
        else:
            day, time_of_day = f"{moment.day} {moment:%b}", f"{moment:%H:%M}"
        if moment >= begins:
            times.append((moment, day if step >= 24 else time_of_day))
        moment += timedelta(hours=step)
    return times
