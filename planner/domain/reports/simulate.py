"""Report the simulation of one policy."""

from planner.domain.kinds.simulate import SimulateResult
from planner.domain.report import Report
from planner.domain.reports.compare import Tests, comparison_report
from planner.domain.reports.modules import modules_section
from planner.domain.reports.tables import Tables


def report(result: SimulateResult, tables: Tables) -> Report:
    """Return the report of ``simulate``."""
    modules = tuple(modules_section(result.modules, result.frame, tables))
    return comparison_report(result.frame, result.comparison, tables, tests=Tests(), more=modules)
