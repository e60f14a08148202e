"""List the kinds of run that have a report, with the type of their result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from planner.domain.deserialise import from_json
from planner.domain.kinds.size import SizeResult
from planner.domain.report import Report
from planner.domain.reports import size
from planner.domain.reports.tables import Tables

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReportKind(Generic[T]):
    """The type of a result and the function that reports it."""

    result: type[T]
    report: Callable[[T, Tables], Report]

    def of(self, document: dict[str, Any], tables: Tables) -> Report:
        """Return the report of a stored result."""
        return self.report(from_json(self.result, document), tables)


REPORTS: dict[str, ReportKind[Any]] = {
    "size": ReportKind(SizeResult, size.report),
}
