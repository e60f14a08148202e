"""Read scenarios."""

from __future__ import annotations

from django.db.models import QuerySet

from planner.models import Scenario
from planner.selectors.lookup import row_by_name


def scenarios_list() -> QuerySet[Scenario]:
    """Return all scenarios with their owners."""
    return Scenario.objects.select_related("owner")


def scenario_get(name: str) -> Scenario:
    """Return a scenario by name or id."""
    return row_by_name(Scenario.objects.all(), "scenario", name)
