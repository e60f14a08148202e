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
    """The type of a kind's result, and the function that makes its report.

    The function takes a result, its tables and, if it has plans to choose from, the name of one.
    """

    result: type[T]
    report: Callable[..., Report]

    def of(self, document: dict[str, Any], tables: Tables, alternative: str = "") -> Report:
        """Return the report of a stored result, about the plan ``alternative`` if one is named."""
        chosen = (alternative,) if alternative else ()
        return self.report(from_json(self.result, document), tables, *chosen)


@cache
def _report_kind(name: str) -> ReportKind[Any]:
    """Return the report of the kind of run ``name``, found by the names of its modules.

    For "pd-ratio", they are kinds/pd_ratio.py with ``PdRatioResult``, and reports/pd_ratio.py.
    """
    result_class = f"{name.title().replace('-', '')}Result"
    reports = import_module(f"planner.domain.reports.{name.replace('-', '_')}")
    return ReportKind(getattr(kind_module(name), result_class), reports.report)


REPORTS: Mapping[str, ReportKind[Any]] = ByName(NAMES, _report_kind)
