"""Hold the content of a report, independent of its layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from planner.templatetags.headroom import NOTHING, figure, percent, when

Value = str | int | float | datetime | None


class Form(Enum):
    """The format of a column's values; the value is the number format of a workbook."""

    TEXT = "@"
    COUNT = "#,##0"
    NUMBER = "#,##0.00"
    SHARE = "0.0%"
    MOMENT = "yyyy-mm-dd hh:mm"


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a column; ``wide`` is its relative width."""

    text: str
    form: Form = Form.TEXT
    unit: str = ""
    wide: int = 1

    @property
    def full(self) -> str:
        """Return the text with its unit."""
        return f"{self.text} ({self.unit})" if self.unit else self.text

    @property
    def numeric(self) -> bool:
        """Return whether the values are numbers, which are aligned to the right."""
        return self.form in (Form.COUNT, Form.NUMBER, Form.SHARE)

    def written(self, value: Value, clock: str = "utc") -> str:
        """Return a value as text."""
        if value is None or value == "":
            return NOTHING
        if isinstance(value, datetime):
            return when(value, clock).removesuffix(" UTC")
        if isinstance(value, str):
            return value
        if self.form is Form.SHARE:
            return percent(value)
        return f"{value:,}" if self.form is Form.COUNT else figure(value)


@dataclass(frozen=True, slots=True)
class Table:
    """A table; ``marked`` are the indices of highlighted rows."""

    heads: tuple[Head, ...]
    rows: tuple[tuple[Value, ...], ...]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Line:
    """A step function over time: each value holds until the next."""

    label: str
    times: tuple[datetime, ...]
    values: tuple[float, ...]
    colour: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a chart."""

    label: str
    value: float
    note: str
    colour: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time, or bars; ``unit`` is that of the values, ``words`` describes the chart."""

    title: str
    unit: str
    words: str
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A section; ``name`` is the name of its sheet in a workbook."""

    title: str
    name: str
    words: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class SignOff:
    """A line to sign; filled in if a proposal was approved."""

    role: str
    name: str = ""
    decision: str = ""
    date: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """A report; ``facts`` are (label, figure, note) at the top."""

    run: int
    title: str
    kind: str
    computed: str
    written: str
    version: str
    window: str
    clock: str
    answer: str
    why: str
    facts: tuple[tuple[str, str, str], ...]
    sections: tuple[Section, ...]
    sign_offs: tuple[SignOff, ...]

    @property
    def heading(self) -> str:
        """Return the title with the run number."""
        return f"{self.title} · run {self.run}"


def rows_of(items: Sequence[Sequence[Value]]) -> tuple[tuple[Value, ...], ...]:
    """Return nested sequences as tuples."""
    return tuple(tuple(item) for item in items)
