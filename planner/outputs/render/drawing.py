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
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
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


Point = tuple[float, float]  # x and y in points of the page


@dataclass(frozen=True, slots=True)
class Path:
    """A line through points."""

    points: tuple[Point, ...]
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
    return _horizontal_bars(chart) if chart.horizontal else _over_x(chart, clock)


def colour_of(series: Series) -> str | None:
    """Return the colour of a series, its own or that of its role; None if it has neither."""
    if series.colour is not None:  # a number among the other colours
        return OTHERS[series.colour % len(OTHERS)]
    if series.role is Role.FORECAST and series.shape is Shape.BAND:
        return SKY
    return COLOURS.get(series.role)


def _series_with_colours(chart: Chart) -> Iterator[tuple[Series, str]]:
    """Yield the series of a chart, each with its colour; those without one get OTHERS in turn."""
    other_colours = cycle(OTHERS)
    for series in chart.series:
        yield series, colour_of(series) or next(other_colours)


def _horizontal_bars(chart: Chart) -> Drawing:
    """Draw horizontal bars, shortest first, that stack the values of series with one label."""
    stacks: dict[str, list[tuple[float, str]]] = {}  # values with their colours, by label
    notes: dict[str, str] = {}
    for series, colour in _series_with_colours(chart):
        labels = list(map(str, series.x))
        for label, value in zip(labels, series.y, strict=True):
            stacks.setdefault(label, []).append((value or 0.0, colour))
        if series.notes:
            notes |= zip(labels, series.notes, strict=True)
    totals = {label: sum(value for value, _ in stack) for label, stack in stacks.items()}
    largest = max(totals.values(), default=0.0) or 1.0
    # Offsets from the row and from the bar are in the unit of the drawing.
    parts: list[Path | Box | Text] = []
    for i, label in enumerate(sorted(stacks, key=totals.__getitem__)):
        top = i * BAR + 4.0
        is_long = len(label) > MOST_CHARACTERS
        shown = f"{label[: MOST_CHARACTERS - 2]}..." if is_long else label
        parts.append(Text(LABEL - 8, top + 10, shown, "end"))
        right_end = LABEL
        for value, colour in stacks[label]:
            length = max((WIDTH - LABEL - NOTE) * value / largest, 1.0)
            parts.append(Box(right_end, top + 1, length, BAR - 7, colour))
            right_end += length
        note = notes.get(label, digits(totals[label]))
        parts.append(Text(right_end + 6, top + 10, note))
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
    categories = max((len(series.x) for series in bars), default=0)
    bar_series = 1 if chart.stacked else len(bars)
    plot = Plot(x, chart.y.top, side_by_side=bar_series, bar_sums=[0.0] * categories)
    for series, colour in _series_with_colours(chart):
        parts += plot.shapes(series, right if series.right else left, colour)
    if len(chart.series) > 1:
        parts += _legend(chart)
    return Drawing(WIDTH, HEIGHT, tuple(parts))


@dataclass(slots=True)
class Plot:
    """A chart over an x axis; bars and areas are stacked on those drawn before.

    ``top`` is the end of the y axis, if it is not the largest value. ``side_by_side`` is the number
    of series with a bar in each category; 1: bars are stacked.
    """

    x: Scale
    top: float | None
    side_by_side: int
    bar_sums: list[float]  # of the bars drawn so far, by category
    area_edge: tuple[float, ...] = ()  # upper edge of the areas drawn so far

    def shapes(self, series: Series, y: Scale, colour: str) -> Iterator[Path | Box]:
        """Yield the shapes of a series."""
        match series.shape:
            case Shape.BAR:
                yield from self._bars(series, y, colour)
            case Shape.POINTS:
                for px, py in _points(series, self.x, y):
                    yield Box(px - 2.5, py - 2.5, 5.0, 5.0, colour)
            case Shape.AREA:
                # An area begins at the upper edge of the one before, or at 0.
                lower = self.area_edge or (0.0,) * len(series.y)
                values = zip(series.y, lower, strict=True)
                self.area_edge = tuple((value or 0.0) + below for value, below in values)
                upper_points = _points(series, self.x, y, self.area_edge)
                yield _filled(upper_points, _points(series, self.x, y, lower), colour)
            case Shape.BAND:
                lower_points = _points(series, self.x, y, series.low)
                yield _filled(_points(series, self.x, y), lower_points, colour)
            case _:
                # A line beyond the end of the axis is left out.
                smallest = min((value or 0.0 for value in series.y), default=0.0)
                points = _points(series, self.x, y)
                if points and (self.top is None or smallest <= self.top):
                    width = 2.4 if series.role is Role.RECOMMENDED else 1.6
                    yield Path(tuple(points), colour, width, dashed=series.role in DASHED)

    def _bars(self, series: Series, y: Scale, colour: str) -> Iterator[Box]:
        """Yield the upright bars of a series, one per category."""
        category_width = 0.7 * PLOT_WIDTH / max(len(self.bar_sums), 1)
        for i, (category, value) in enumerate(zip(series.x, series.y, strict=True)):
            base = self.bar_sums[i] if self.side_by_side == 1 else 0.0
            bar_end = base + (value or 0.0)
            top, bottom = y.position(bar_end), y.position(base)
            left = self.x.position(category) - category_width / 2
            yield Box(left, top, category_width / self.side_by_side, bottom - top, colour)
            self.bar_sums[i] = bar_end


def _filled(upper: Sequence[Point], lower: Sequence[Point], colour: str) -> Path:
    """Return the area between two edges, both from left to right."""
    return Path((*upper, *reversed(lower)), colour, filled=True)


def _axes(x: Scale, y: Scale) -> Iterator[Path | Text]:
    """Yield the grid lines of the y axis, the ticks of the x axis, and the labels of both."""
    for position, label in y.ticks:
        yield Path(((LEFT, position), (WIDTH - RIGHT, position)), GRID, 0.5)
        yield Text(LEFT - 6, position + 3, label, "end")
    bottom = HEIGHT - BOTTOM
    for position, label in x.ticks:
        yield Path(((position, bottom), (position, bottom + 4)), INK, 0.5)
        yield Text(position, bottom + 15, label, "middle")


def _legend(chart: Chart) -> Iterator[Path | Text]:
    """Yield the legend above the chart, in two lines if the names do not fit in one."""
    widths = [34 + 4.6 * len(series.label) for series in chart.series]
    fits_in_one_line = LEFT + sum(widths) <= WIDTH
    x, y = LEFT, 10.0 if fits_in_one_line else 4.0
    for (series, colour), width in zip(_series_with_colours(chart), widths, strict=True):
        if x > LEFT and x + width > WIDTH:
            x, y = LEFT, y + 12
        yield Path(((x, y), (x + 18, y)), colour, 2.0, series.role in DASHED)
        yield Text(x + 23, y + 3, series.label)
        x += width


def _points(series: Series, x: Scale, y: Scale, values: Sequence[float | None] = ()) -> list[Point]:
    """Return the points of a series without its gaps; steps get corner points.

    ``values`` are y values that replace those of the series, such as the lower edge of a band.
    """
    has_steps = series.shape in (Shape.STEP, Shape.AREA)
    points: list[Point] = []
    for x_value, y_value in zip(series.x, values or series.y, strict=True):
        if y_value is None:
            continue
        position = x.position(x_value)
        if points and has_steps:
            # The value holds until the next moment, so draw a step and not a slope.
            _, last_height = points[-1]
            points.append((position, last_height))
        points.append((position, y.position(y_value)))
    return points


def _x_scale(chart: Chart, clock: str) -> Scale:
    """Return the scale of the x axis: times, categories or numbers."""
    values = [x for series in chart.series for x in series.x if x is not None]
    moments = [x for x in values if isinstance(x, datetime)]
    if moments:
        return _time_scale(local(min(moments)), local(max(moments)), clock)
    if any(isinstance(x, str) for x in values):
        return _category_scale(list(dict.fromkeys(map(str, values))))
    return _number_scale([float(x) for x in values], is_log=chart.x.log)  # type: ignore[arg-type]


def _time_scale(begins: datetime, ends: datetime, clock: str) -> Scale:
    """Return the scale of an x axis of times."""
    length_s = (ends - begins).total_seconds() or 1.0

    def position(value: Value) -> float:
        assert isinstance(value, datetime)
        return LEFT + PLOT_WIDTH * (value - begins).total_seconds() / length_s

    ticks = _labelled_times(begins, ends, clock)
    return Scale(position, tuple((position(moment), label) for moment, label in ticks))


def _category_scale(names: list[str]) -> Scale:
    """Return the scale of an x axis of categories, at most LABELS of them with a label."""
    width = PLOT_WIDTH / len(names)
    centres = {name: LEFT + width * (i + 0.5) for i, name in enumerate(names)}
    labelled = names[:: ceil(len(names) / LABELS)]  # every name, or every nth one
    ticks = tuple((centres[name], name) for name in labelled)
    return Scale(lambda value: centres[str(value)], ticks)


def _number_scale(values: Sequence[float], *, is_log: bool) -> Scale:
    """Return the scale of an x axis of numbers; it begins at zero unless it is logarithmic."""
    highest = max(values, default=1.0) or 1.0
    if is_log:
        return _log_scale(min(value for value in values if value > 0), highest)

    def position(value: Value) -> float:
        return LEFT + PLOT_WIDTH * float(value) / highest  # type: ignore[arg-type]

    ticks = [tick for tick in _ticks(highest) if tick <= highest]
    return Scale(position, tuple((position(tick), digits(tick)) for tick in ticks))


def _log_scale(lowest: float, highest: float) -> Scale:
    """Return a logarithmic scale of the x axis, with ticks at powers of ten or at both ends."""
    decades = log10(highest / lowest) or 1.0

    def position(value: Value) -> float:
        from_left = log10(float(value)) - log10(lowest)  # type: ignore[arg-type]
        return LEFT + PLOT_WIDTH * from_left / decades

    powers = [10.0**n for n in range(floor(log10(lowest)), ceil(log10(highest)) + 1)]
    ticks = [power for power in powers if lowest <= power <= highest] or [lowest, highest]
    return Scale(position, tuple((position(tick), digits(tick)) for tick in ticks))


def _y_scale(series: Sequence[Series], axis: Axis) -> Scale:
    """Return the y scale, from zero (or a negative value) to above the largest value.

    If ``axis.top`` is set, the scale ends there, and larger values are drawn at its end.
    """
    values = [y for one_series in series for y in one_series.y if y is not None]
    for shape in (Shape.BAR, Shape.AREA):
        values_of_series = [one_series.y for one_series in series if one_series.shape is shape]
        if len(values_of_series) > 1:  # they are stacked, so they reach the sum at each x
            by_x = zip(*values_of_series, strict=True)
            values += [sum(filter(None, stacked)) for stacked in by_x]
    ticks = _ticks(axis.top or max(values, default=0.0) or 1.0)
    lowest, highest = min([0.0, *values]), ticks[-1]

    def position(value: Value) -> float:
        on_axis = min(float(value), highest)  # type: ignore[arg-type]
        return HEIGHT - BOTTOM - PLOT_HEIGHT * (on_axis - lowest) / (highest - lowest)

    is_percent = axis.form in (Form.SHARE, Form.CHANGE)
    label = "{:.0%}".format if is_percent else digits
    return Scale(position, tuple((position(tick), label(tick)) for tick in ticks))


def _ticks(highest: float) -> list[float]:
    """Return four to six evenly spaced, round ticks from zero to above ``highest``."""
    least_step = highest / 4
    power = 10 ** floor(log10(least_step))
    step = min(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= least_step)
    if highest >= 4 and step < 1:
        step = 1.0
    # The tolerance avoids one more tick if the division is rounded up.
    count = ceil(highest / step - 1e-9)
    return [step * i for i in range(count + 1)]


def _labelled_times(begins: datetime, ends: datetime, clock: str) -> list[tuple[datetime, str]]:
    """Return at most nine (time, label) on whole hours or days, for the ticks of an axis."""
    hours = (ends - begins).total_seconds() / 3600
    round_steps = [step for step in (1, 2, 3, 6, 12, 24, 48, 168) if hours / step <= 8]
    step_hours = round_steps[0] if round_steps else ceil(hours / 8)
    # Start at the last multiple of the step since midnight, which may be before ``begins``.
    first_hour = begins.hour - begins.hour % min(step_hours, 24)
    moment = begins.replace(hour=first_hour, minute=0, second=0, microsecond=0)
    times = []
    while moment <= ends:
        if clock == "utc":
            day, time_of_day = f"{moment.day} {moment:%b}", f"{moment:%H:%M}"
        else:  # days of the trace
            day, _, time_of_day = when(moment, clock).partition(", ")
        if moment >= begins:
            times.append((moment, day if step_hours >= 24 else time_of_day))
        moment += timedelta(hours=step_hours)
    return times
