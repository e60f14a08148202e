"""Keep a subset of rows by a small filter: equality, sets and ranges on any column.

A filter is one or more conditions joined by ``and``: ``cache_hit != True``, ``status in (200,
206)``, ``model not in (a, "b c")``, ``prompt_tokens >= 1``, ``hour in 8..18``. Nothing in it is
evaluated as code. Words compare without case. An empty cell equals nothing, so ``!=`` keeps it.
"""

import re
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.numbers import finite_number
from simulation.arrays import BoolArray

EVERY_ROW = "all"  # the filter that keeps every row
MAX_TEXT = 1000
MAX_CONDITIONS = 20
_VALUE = r"""(?:"[^"]*"|'[^']*'|[^\s,()"]+)"""
_CONDITION = re.compile(
    rf'\s*(?P<column>"[^"]+"|[^\s"=!<>()]+)\s*'
    rf"(?:(?P<op>!=|<=|>=|==?|<|>)\s*(?P<value>{_VALUE})"
    rf"|(?P<not>not\s+)?in\s+(?:\((?P<set>\s*{_VALUE}(?:\s*,\s*{_VALUE})*\s*)\)"
    r"|(?P<low>-?[\d.]+?)\.\.(?P<high>-?[\d.]+)))\s*(?P<more>and\s|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a row filter: a column's value is in ``values``, or in a range."""

    column: str
    values: tuple[str, ...] = ()
    low: float = -np.inf
    high: float = np.inf
    strict: bool = False  # without the ends of the range
    negated: bool = False  # True: keeps the other rows
    text: str = ""  # as written

    def keeps(self, series: pl.Series) -> BoolArray:
        """Return a mask of the rows that meet the condition; ``series`` is the column, ``[rows]``.

        Cells and values are compared as text in any case, and as numbers.
        """
        text = series.cast(pl.String, strict=False).str.strip_chars()
        cell_numbers = text.cast(pl.Float64, strict=False)
        if self.values:
            words = [value.lower() for value in self.values]
            numbers = [number for number in map(finite_number, words) if number is not None]
            matching = text.str.to_lowercase().is_in(words) | cell_numbers.is_in(numbers)
        else:
            ends: Literal["none", "both"] = "none" if self.strict else "both"
            matching = cell_numbers.is_between(self.low, self.high, closed=ends)
        mask = np.asarray(matching.fill_null(False).to_numpy(), dtype=np.bool_)
        return ~mask if self.negated else mask


def parse(text: str) -> tuple[Condition, ...]:
    """Return the conditions of a filter; raise IngestError that shows the first bad one."""
    if len(text) > MAX_TEXT:
        raise IngestError(f"where: the filter has over {MAX_TEXT} characters. Shorten it.")
    conditions: list[Condition] = []
    position = 0
    while position < len(text):
        match = _CONDITION.match(text, position)
        if match is None or len(conditions) == MAX_CONDITIONS:
            raise IngestError(
                f"where: {text[position : position + 60]!r} is no condition. Write COLUMN = VALUE, "
                f"!= VALUE, in (A, B), not in (A, B), in 1..9 or >= 5, joined by and, at most "
                f"{MAX_CONDITIONS}."
            )
        text_of_condition = match[0].removesuffix(match["more"]).strip()
        conditions.append(replace(_condition(match), text=text_of_condition))
        position = match.end()
    return tuple(conditions)


def _condition(match: re.Match[str]) -> Condition:
    """Return the condition in a match of ``_CONDITION``: a set, a range or a comparison."""
    column, negated = match["column"].strip('"'), bool(match["not"])
    if match["set"]:
        values = tuple(map(_strip_quotes, re.findall(_VALUE, match["set"])))
        return Condition(column, values, negated=negated)
    if match["low"]:
        low, high = _bound(match["low"]), _bound(match["high"])
        return Condition(column, low=low, high=high, negated=negated)
    operator, value = match["op"], _strip_quotes(match["value"])
    if operator in ("=", "==", "!="):
        return Condition(column, (value,), negated=operator == "!=")
    strict = operator in ("<", ">")
    if operator in (">", ">="):
        return Condition(column, low=_bound(value), strict=strict)
    return Condition(column, high=_bound(value), strict=strict)


def _strip_quotes(text: str) -> str:
    """Return a value without the quotes around it, if both ends have the same quote."""
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if is_quoted else text


def _bound(text: str) -> float:
    """Return the bound of a range as a number; raise IngestError if it is none."""
    bound = finite_number(text)
    if bound is None:
        raise IngestError(f"where: {text!r} is no number; ranges need numbers.")
    return bound
