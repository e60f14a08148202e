"""List the kinds of run that have a report, with the type of their result."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Generic, TypeVar

from planner.domain.kinds.registry import NAMES, ByName, kind_module
from planner.domain.report import Report
from planner.domain.reports.tables import Tables
from planner.domain.serialise import from_json

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReportKind(Generic[T]):
    """The type of a result and the function that reports it."""

    result: type[T]
    report: Callable[..., Report]  # of a result, its tables, and the name of an alternative

    def of(self, document: dict[str, Any], tables: Tables, alternative: str = "") -> Report:
        """Return the report of a stored result; of an alternative in it, if one is named."""
        named = (alternative,) if alternative else ()
        return self.report(from_json(self.result, document), tables, *named)


@cache
def _report_kind(name: str) -> ReportKind[Any]:
    """Return the report of a kind of run; the result of ``pd-ratio`` is ``PdRatioResult``."""
    result = f"{name.title().replace('-', '')}Result"
    reports = import_module(f"planner.domain.reports.{name.replace('-', '_')}")
    return ReportKind(getattr(kind_module(name), result), reports.report)


REPORTS: Mapping[str, ReportKind[Any]] = ByName(NAMES, _report_kind)
