"""What a report is made of, before anything is drawn or laid out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from planner.templatetags.headroom import NOTHING, figure, percent, when

Value = str | int | float | datetime | None


class Form(Enum):
    """How a column's values are written, and what a workbook formats them as."""

    TEXT = "@"
    COUNT = "#,##0"
    NUMBER = "#,##0.00"
    SHARE = "0.0%"
    MOMENT = "yyyy-mm-dd hh:mm"


@dataclass(frozen=True, slots=True)
class Head:
    """``unit`` stands with the head; ``wide`` of a column whose text needs room."""

    text: str
    form: Form = Form.TEXT
    unit: str = ""
    wide: int = 1

    @property
    def full(self) -> str:
        return f"{self.text} ({self.unit})" if self.unit else self.text

    @property
    def numeric(self) -> bool:
        return self.form in (Form.COUNT, Form.NUMBER, Form.SHARE)

    def written(self, value: Value, clock: str = "utc") -> str:
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
    """``marked`` rows are what the section is about."""

    heads: tuple[Head, ...]
    rows: tuple[tuple[Value, ...], ...]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Line:
    """Steps of a figure over time: each value holds until the next."""

    label: str
    times: tuple[datetime, ...]
    values: tuple[float, ...]
    colour: str
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    note: str
    colour: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over time, or bars; ``unit`` of its values, ``words`` what it shows."""

    title: str
    unit: str
    words: str
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """``name`` is that of its sheet in a workbook."""

    title: str
    name: str
    words: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    charts: tuple[Chart, ...] = ()
    table: Table | None = None


@dataclass(frozen=True, slots=True)
class SignOff:
    """A line to sign on; filled in where a proposal says who did."""

    role: str
    name: str = ""
    decision: str = ""
    date: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """``facts`` are the few figures at the top, each with what it is and a note."""

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
        return f"{self.title} · run {self.run}"


def rows_of(items: Sequence[Sequence[Value]]) -> tuple[tuple[Value, ...], ...]:
    return tuple(tuple(item) for item in items)
