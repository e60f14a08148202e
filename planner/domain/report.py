"""Describe an answer once, as blocks that every format draws.

A kind of run builds its report from its result and its tables (planner/domain/reports). Each
renderer in planner/outputs/render draws any report: page, terminal, PDF, workbook, JSON.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Any, TypeVar

from planner.domain.formats import (
    LONG_MS,
    NOTHING,
    compact,
    duration,
    figure,
    minus,
    percent,
    signed_percent,
    when,
)
from planner.domain.sources import Fact as Source

T = TypeVar("T")
Value = str | int | float | datetime | None


class Form(Enum):
    """The format of values; the value is the number format of a workbook."""

    TEXT = "@"
    COUNT = "#,##0"
    NUMBER = "#,##0.00"
    SHARE = "0.0%"
    CHANGE = "+0.0%;-0.0%;0.0%"
    SECONDS = "#,##0.0"  # people read the largest units, such as 4 min 10 s
    MOMENT = "yyyy-mm-dd hh:mm"

    @property
    def numeric(self) -> bool:
        """Return whether values of this format are numbers, which are aligned to the right."""
        return self not in (Form.TEXT, Form.MOMENT)

    def written(self, value: Value, clock: str = "utc") -> str:
        """Return a value as text, without its unit."""
        if value is None or value == "" or value != value:  # NaN is not equal to itself
            return NOTHING
        if isinstance(value, datetime):
            return when(value, clock, zoned=False)
        if isinstance(value, str):
            return value
        match self:
            case Form.SHARE:
                return percent(value)
            case Form.CHANGE:
                return signed_percent(value)
            case Form.SECONDS:
                return duration(value)
            case Form.COUNT:
                return minus(f"{value:,.0f}")
        return figure(value)


class Meaning(Enum):
    """What a figure means for the decision; renderers choose a colour for it."""

    NEUTRAL = "neutral"
    MET = "met"
    SAVING = "saving"
    RISK = "risk"
    MISSED = "missed"


@dataclass(frozen=True, slots=True)
class Fact:
    """A labelled figure. ``change`` compares it, ``note`` explains it.

    ``link`` is the anchor of the section of the same report with more on it.
    """

    label: str
    value: Value
    unit: str = ""
    form: Form = Form.NUMBER
    change: str = ""
    note: str = ""
    meaning: Meaning = Meaning.NEUTRAL
    link: str = ""

    @property
    def change_and_note(self) -> str:
        """Return the change and the note in one line."""
        return " · ".join(filter(None, (self.change, self.note)))

    @property
    def text(self) -> str:
        """Return the value with its unit."""
        if isinstance(self.value, str) or self.value is None:
            return self.value or NOTHING
        if isinstance(self.value, float | int) and (self.unit == "$" or self.form is Form.NUMBER):
            return compact(self.value, self.unit)
        text = self.form.written(self.value)
        return f"{text} {self.unit}" if self.unit else text


@dataclass(frozen=True, slots=True)
class Facts:
    """Figures side by side."""

    items: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A sentence."""

    text: str
    meaning: Meaning = Meaning.NEUTRAL


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column; ``width`` is relative to other columns."""

    text: str
    form: Form = Form.TEXT
    unit: str = ""
    width: int = 1

    @property
    def full(self) -> str:
        """Return the text with its unit."""
        return f"{self.text} ({self.unit})" if self.unit else self.text

    @property
    def numeric(self) -> bool:
        """Return whether the values are numbers, which are aligned to the right."""
        return self.form.numeric


@dataclass(frozen=True, slots=True)
class Table:
    """A table; ``marked`` are the indices of highlighted rows.

    ``shades`` has a value from 0 to 1 per cell of a heat map, and None for cells without colour.
    ``steps`` says that a row holds until the next one, so that a page can show what changes.
    """

    heads: tuple[Head, ...]
    rows: tuple[tuple[Value, ...], ...]
    title: str = ""
    marked: frozenset[int] = frozenset()
    note: str = ""
    shades: tuple[tuple[float | None, ...], ...] = ()
    steps: bool = False

    def texts(self, clock: str = "utc") -> tuple[tuple[str, ...], ...]:
        """Return the rows as text. The numbers of a column have the same decimals."""
        columns = [
            _column_texts(head, values, clock)
            for head, values in zip(self.heads, self._columns, strict=True)
        ]
        return tuple(zip(*columns, strict=True))

    @property
    def _columns(self) -> list[list[Value]]:
        """Return the values of each column."""
        return [[row[i] for row in self.rows] for i in range(len(self.heads))]

    @property
    def display_heads(self) -> tuple[Head, ...]:
        """Return the heads for people: a column with long times has its units in the cells."""
        return tuple(
            replace(head, unit="") if _has_long_times(head, values) else head
            for head, values in zip(self.heads, self._columns, strict=True)
        )


def _has_long_times(head: Head, values: Sequence[Value]) -> bool:
    """Return whether a column is in milliseconds, and one is long enough for a larger unit."""
    times_ms = [value for value in values if isinstance(value, int | float)]
    return head.unit == "ms" and max(times_ms, default=0) >= LONG_MS


def _column_texts(head: Head, values: Sequence[Value], clock: str) -> list[str]:
    """Return the values of a column as text.

    Numbers have common decimals, so that the largest has three digits. Smaller ones that would
    lose digits have more decimals. Values of other forms are written one by one.
    """
    form = head.form
    if _has_long_times(head, values):
        return [
            duration(value / 1000) if isinstance(value, int | float) else form.written(value)
            for value in values
        ]
    numbers = [abs(v) for v in values if isinstance(v, int | float) and v == v]  # without NaN
    if form is not Form.NUMBER or not numbers:  # no decimals to choose
        return [form.written(value, clock) for value in values]
    all_whole = all(number == int(number) for number in numbers)
    # Three digits for the largest number: 0.123, 1.23, 12.3 or 123.
    decimals = 0 if all_whole else sum(max(numbers) < size for size in (1, 10, 100))
    smallest_exact = 10 ** (2 - decimals)  # smaller numbers would lose digits
    texts = []
    for value in values:
        if isinstance(value, int | float) and (
            all_whole or not value or abs(value) >= smallest_exact
        ):
            texts.append(minus(f"{value:,.{decimals}f}"))
        else:
            texts.append(form.written(value, clock))
    return texts


TableColumns = tuple[tuple[Head, Callable[[T], Value]], ...]  # heads, and cells of an item


def table(
    items: Iterable[T],
    *columns: tuple[Head, Callable[[T], Value]],
    title: str = "",
    note: str = "",
    marked: Callable[[T], bool] | None = None,
) -> Table:
    """Return a row per item, without the columns that have no value in any row.

    Each column is a heading and a function from an item to its cell. Rows of items for which
    ``marked`` returns True are highlighted.
    """
    listed = list(items)
    heads: list[Head] = []
    filled: list[list[Value]] = []  # the columns with a value
    for head, value_of in columns:
        values = [value_of(item) for item in listed]
        if not values or any(value not in (None, "") for value in values):
            heads.append(head)
            filled.append(values)
    highlighted = [i for i, item in enumerate(listed) if marked and marked(item)]
    return Table(
        heads=tuple(heads),
        rows=tuple(zip(*filled, strict=True)),
        title=title,
        marked=frozenset(highlighted),
        note=note,
    )


def without_constants(table: Table, may_go: Callable[[Head], bool]) -> Table:
    """Return a table without its columns that have one value, which the note then has.

    Only columns whose head ``may_go`` go. The first one, which names the rows, stays. So does a
    table with a single row.
    """
    columns = list(zip(*table.texts(), strict=True))
    constant = [
        i
        for i, texts in enumerate(columns)
        if i and len(table.rows) > 1 and len(set(texts)) == 1 and may_go(table.heads[i])
    ]
    if not constant:
        return table
    kept = [i for i in range(len(columns)) if i not in constant]
    values = ", ".join(f"{table.heads[i].full} {columns[i][0]}" for i in constant)
    return replace(
        table,
        heads=tuple(table.heads[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in table.rows),
        note=f"Same in these rows: {values}. {table.note}".rstrip(),
    )


def key_columns(
    items: Iterable[T], head: Head, values_of: Callable[[T], Mapping[str, Value] | None]
) -> TableColumns[T]:
    """Return a column for each key, such as a tier, of the values of items.

    The text of ``head`` has a placeholder ({}) for the key. None: an item has no values.
    """

    def value(key: str, item: T) -> Value:
        """Return the value of a key; None if the item lacks it."""
        return (values_of(item) or {}).get(key)

    keys = dict.fromkeys(key for item in items for key in values_of(item) or {})
    return tuple((replace(head, text=head.text.format(key)), partial(value, key)) for key in keys)


class Role(Enum):
    """What a series shows; renderers choose its colour and weight."""

    DEMAND = "demand"
    FORECAST = "forecast"
    RECOMMENDED = "recommended"
    CAPACITY = "capacity"
    BASELINE = "baseline"
    LIMIT = "limit"
    SHORTFALL = "shortfall"
    RISK = "risk"
    MEASURED = "measured"
    DEFERRABLE = "deferrable"
    OTHER = "other"  # renderers take the next colour


class Shape(Enum):
    """How a series is drawn. The value of a step holds until the next."""

    LINE = "line"
    MARKED = "marked"  # a line with a dot at each value
    STEP = "step"
    BAR = "bar"
    POINTS = "points"
    BAND = "band"  # between ``low`` and the values
    AREA = "area"  # filled steps; those of a chart stand on each other


@dataclass(frozen=True, slots=True)
class Series:
    """Values over x; ``notes`` explain the points, ``low`` is the lower edge of a band."""

    label: str
    x: tuple[Value, ...]
    y: tuple[float | None, ...]
    role: Role = Role.OTHER
    shape: Shape = Shape.LINE
    low: tuple[float | None, ...] = ()
    notes: tuple[str, ...] = ()
    right: bool = False  # on the axis at the right
    colour: int | None = None  # its number among the other colours, so that charts agree


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis; ``top`` is its end where that is not the largest value.

    ``zero`` says whether an axis y in the browser begins at zero.
    """

    title: str = ""
    unit: str = ""
    form: Form = Form.NUMBER
    log: bool = False
    top: float | None = None
    zero: bool = True
    ticks: tuple[float, ...] = ()  # values with a label, where not the usual ones

    @property
    def full(self) -> str:
        """Return the title with its unit."""
        if self.title and self.unit:
            return f"{self.title} ({self.unit})"
        return self.title or self.unit


@dataclass(frozen=True, slots=True)
class Chart:
    """One or more series over a common x axis: numbers, times, or categories if x is text.

    ``horizontal`` draws bars sideways, with one category per line.
    """

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    note: str = ""
    right: Axis | None = None
    stacked: bool = False
    horizontal: bool = False
    small: bool = False  # two fit side by side on a wide page
    half: bool = False  # half as high as others
    bare: bool = False  # without the title of x, where the text around it says the clock

    @property
    def label(self) -> str:
        """Return the title with the unit of the values, unless the title has it."""
        unit = self.y.unit
        if not unit or unit in self.title.lower().split():
            return self.title
        return f"{self.title} ({unit})"


def step_series(
    label: str,
    starts: Sequence[Any],
    values: Sequence[float | None],
    role: Role = Role.OTHER,
    notes: Sequence[str] = (),
) -> Series:
    """Return the values of periods as a line of steps.

    ``starts`` are times or numbers, in order. The last period is as long as the others on average.
    """
    length = (starts[-1] - starts[0]) / max(1, len(starts) - 1)
    ends = (*starts, starts[-1] + length)
    notes = (*notes, notes[-1]) if notes else ()
    return Series(label, ends, (*values, values[-1]), role, Shape.STEP, notes=notes)


def shortfall(
    x: Sequence[Value], demand: Sequence[float], capacity: Sequence[float]
) -> Series | None:
    """Return the band where demand exceeds capacity, or None if it never does."""
    if not any(needed > served for needed, served in zip(demand, capacity, strict=True)):
        return None
    top = tuple(map(max, demand, capacity))
    return Series(
        "Demand above capacity", tuple(x), top, Role.SHORTFALL, Shape.BAND, tuple(capacity)
    )


Block = Facts | Note | Table | Chart


class Group(Enum):
    """A group of details; the value is its heading. Pages show the groups in this order."""

    POLICIES = "Policies"
    PLAN = "Plan and sizes"
    BASIS = "Accuracy and sources"


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a heading.

    ``group``: a page shows the section on demand, under the group's heading, and a terminal only
    if ``printed``. None: part of the decision.
    """

    title: str
    blocks: tuple[Block, ...]
    name: str = ""  # short name, for the anchor of a page and the sheet of a workbook
    group: Group | None = None
    printed: bool = False

    @property
    def order(self) -> int:
        """Return the place on a page: the decision first, then one group after the other."""
        return [None, *Group].index(self.group)

    @property
    def sheet(self) -> str:
        """Return the short name."""
        return self.name or self.title

    @property
    def anchor(self) -> str:
        """Return the id of the section on a page."""
        return re.sub(r"\W+", "-", self.sheet.lower()).strip("-")

    @property
    def tables(self) -> tuple[Table, ...]:
        """Return the tables of the section."""
        return tuple(block for block in self.blocks if isinstance(block, Table))


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another answer to choose, with its price; ``name`` selects it in addresses."""

    name: str
    label: str
    price: Fact
    shown: bool = False  # whether this report is about it


@dataclass(frozen=True, slots=True)
class Report:
    """An answer for people: what to do, the deciding facts, then the sections.

    ``opening`` compares what runs today with the answer, in a sentence or two. ``about`` says what
    it is the answer for, such as the window. ``clock`` is that of its times.
    ``why`` has the reasons in a sentence or two. ``charts`` belong to the facts, and share their x
    axis. ``trust`` says in few words how sure the facts are.
    """

    title: str
    answer: str
    sections: tuple[Section, ...]
    meaning: Meaning = Meaning.NEUTRAL
    opening: str = ""
    why: str = ""
    about: str = ""
    facts: tuple[Fact, ...] = ()
    warnings: tuple[str, ...] = ()
    clock: str = "utc"
    alternatives: tuple[Alternative, ...] = ()
    charts: tuple[Chart, ...] = ()
    trust: tuple[Fact, ...] = ()

    @property
    def tables(self) -> Iterator[Table]:
        """Yield the tables of all sections."""
        for section in self.sections:
            yield from section.tables


def table_section(
    title: str,
    items: Iterable[T] | None,
    *columns: tuple[Head, Callable[[T], Value]],
    name: str = "",
    group: Group | None = None,
    printed: bool = False,
    note: str = "",
    marked: Callable[[T], bool] | None = None,
) -> Iterator[Section]:
    """Yield the section with the ``table`` of ``items``; nothing if there are none, or None."""
    listed = list(items or ())
    if listed:
        rows = table(listed, *columns, note=note, marked=marked)
        yield Section(title, (rows,), name, group, printed)


SOURCE_HEADS = (Head("Input", width=2), Head("Kind"), Head("Source", width=4))


def sources_section(sources: Sequence[Source], notes: Sequence[str]) -> tuple[Section, ...]:
    """Return the section of notes and sources, if there are any."""
    blocks: list[Block] = [Note(note) for note in notes]
    if sources:
        # Two inputs may rest on one source.
        rows = tuple(dict.fromkeys((fact.what, fact.kind, fact.source) for fact in sources))
        blocks.append(Table(SOURCE_HEADS, rows))
    if not blocks:
        return ()
    return (Section("Sources and assumptions", tuple(blocks), "Sources", group=Group.BASIS),)


def limit_name(bound: str) -> str:
    """Return the name of the limit that bounds a capacity, such as TTFT."""
    return {"tbt": "TPOT", "ttft": "TTFT", "e2e": "E2E", "slo": "SLO"}.get(bound, bound)
