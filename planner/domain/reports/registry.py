"""List the kinds of run that have a report, with the type of their result."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from planner.domain.deserialise import from_json
from planner.domain.kinds.backtest import BacktestResult
from planner.domain.kinds.compare import CompareResult
from planner.domain.kinds.forecast import ForecastResult
from planner.domain.kinds.outlook import OutlookResult
from planner.domain.kinds.pareto import ParetoResult
from planner.domain.kinds.pd_ratio import PdRatioResult
from planner.domain.kinds.place import PlaceResult
from planner.domain.kinds.plan import PlanResult
from planner.domain.kinds.provision import ProvisionResult
from planner.domain.kinds.share import ShareResult
from planner.domain.kinds.simulate import SimulateResult
from planner.domain.kinds.size import SizeResult
from planner.domain.report import Report
from planner.domain.reports import (
    backtest,
    compare,
    forecast,
    outlook,
    pd_ratio,
    place,
    plan,
    provision,
    share,
    simulate,
    size,
    whatif,
)
from planner.domain.reports.tables import Tables

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


REPORTS: dict[str, ReportKind[Any]] = {
    "backtest": ReportKind(BacktestResult, backtest.report),
    "compare": ReportKind(CompareResult, compare.report),
    "forecast": ReportKind(ForecastResult, forecast.report),
    "outlook": ReportKind(OutlookResult, outlook.report),
    "pareto": ReportKind(ParetoResult, whatif.front_report),
    "pd-ratio": ReportKind(PdRatioResult, pd_ratio.report),
    "place": ReportKind(PlaceResult, place.report),
    "plan": ReportKind(PlanResult, plan.report),
    "provision": ReportKind(ProvisionResult, provision.report),
    "share": ReportKind(ShareResult, share.report),
    "simulate": ReportKind(SimulateResult, simulate.report),
    "size": ReportKind(SizeResult, size.report),
}
