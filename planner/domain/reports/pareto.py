"""Report a Pareto front."""

from planner.domain.reports.whatif import front_report as report

__all__ = ["report"]
