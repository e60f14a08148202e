"""Scenarios."""

from __future__ import annotations

from django.db.models import QuerySet

from planner.errors import NotFound
from planner.models import Scenario


def scenarios_list() -> QuerySet[Scenario]:
    return Scenario.objects.select_related("owner")


def scenario_get(name: str) -> Scenario:
    """By name or id."""
    name = name.replace("\0", "?")  # which PostgreSQL would not even look for
    scenario = Scenario.objects.filter(name=name).first()
    if scenario is None and name.isdecimal():
        scenario = Scenario.objects.filter(pk=int(name)).first()
    if scenario is None:
        have = ", ".join(Scenario.objects.values_list("name", flat=True)[:10]) or "none yet"
        raise NotFound(f"There is no scenario {name!r}; there are: {have}.")
    return scenario
