"""Plans in force: of each scenario one at most; and those that were."""

from __future__ import annotations

from django.db.models import Q, QuerySet

from planner.models import PlanInForce, Run
from planner.selectors.lookup import row_numbered


def plans_in_force() -> QuerySet[PlanInForce]:
    """All of them, the newest first; their runs, which are large, only where asked for."""
    return PlanInForce.objects.select_related("by").filter(until=None)


def plan_in_force(scenario: str) -> PlanInForce | None:
    """Of the scenario of that name, as it is called now or was when the plan was put in force."""
    plans = plans_in_force()
    now, then = Q(run__scenario__name=scenario), Q(scenario=scenario)
    return plans.filter(now).first() or plans.filter(then).first()


def plans_kept(scenario: str = "") -> QuerySet[PlanInForce]:
    """All that are or were in force, the newest first; of the scenario of that name, as it is
    called now or was then."""
    rows = PlanInForce.objects.select_related("by", "proposal")
    return rows.filter(Q(run__scenario__name=scenario) | Q(scenario=scenario)) if scenario else rows


def plan_kept_get(number: int) -> PlanInForce:
    return row_numbered(plans_kept(), "plan", number, " that is or was in force")


def in_force_of(run: Run) -> PlanInForce | None:
    """Of the scenario that a run is of: the saved one, whatever it is called by now; else, of a
    file or where one has been removed since, the one of its name."""
    same = Q(scenario=scenario_of(run))
    if run.scenario_id is not None:
        same = Q(run__scenario=run.scenario_id) | (same & Q(run__scenario=None))
    return plans_in_force().filter(same).first()


def scenario_of(run: Run) -> str:
    """What its plan says it is of."""
    return str((run.result or {}).get("scenario") or run.name)[:120]
