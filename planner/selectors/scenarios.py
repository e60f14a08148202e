"""Read scenarios."""

import json
from collections.abc import Iterable

from django.db.models import F, FloatField, Max, Q, QuerySet, Value
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from planner.domain.reports.policies import span_text
from planner.models import Run, Scenario
from planner.selectors.lookup import row_by_name


def scenarios_list() -> QuerySet[Scenario]:
    """Return all scenarios with their owners."""
    return Scenario.objects.select_related("owner")


def latest_comparisons(scenarios: Iterable[Scenario]) -> dict[int, Run]:
    """Return the newest completed comparison by scenario, with figures of its recommendation.

    They are ``plan`` (the policy), ``assurance``, ``meets_slo``, ``replicas`` as scheduled, and
    ``cost`` in dollars of the window. ``change`` of the cost is a share of the baseline's, at equal
    SLO attainment. Each is None if the result does not have it. ``outdated`` means that the
    scenario changed since.
    """
    done = Run.objects.filter(
        scenario__in=scenarios, kind=Run.Kind.COMPARE, state=Run.State.COMPLETED, sweep=None
    )
    newest = done.order_by().values("scenario").annotate(newest=Max("pk")).values("newest")
    rows = Run.objects.filter(pk__in=newest).only("scenario", "finished_at")
    found = rows.annotate(
        plan=KT("result__recommended__label"),
        assurance=KT("result__recommended__assurance"),
        meets_slo=KT("result__recommended__meets_slo"),
        outdated=~Q(document=F("scenario__document")),
        rows=KT("result__recommended__timetable__rows"),
        cost=Cast(KT("result__recommended__cost_usd"), FloatField()),
        change=Value(-1.0) * Cast(KT("result__recommended__equal_slo_saving"), FloatField()),
    )
    for run in found:
        totals = [sum(row["replicas"]) for row in json.loads(vars(run)["rows"] or "[]")]
        vars(run)["replicas"] = span_text((min(totals), max(totals))) if totals else None
    return {run.scenario_id: run for run in found if run.scenario_id is not None}


def scenario_get(name: str) -> Scenario:
    """Return a scenario by name or id."""
    return row_by_name(Scenario.objects.all(), "scenario", name)
