"""Read active plans, at most one per scenario, and former ones."""

from dataclasses import dataclass

from django.db.models import Q, QuerySet

from planner.models import ActivePlan, Run
from planner.selectors.lookup import row_by_number
from planner.selectors.runs import stored_result


def active_plans() -> QuerySet[ActivePlan]:
    """Return all active plans, newest first; their large runs are loaded only on access."""
    return ActivePlan.objects.select_related("by").filter(until=None)


def active_plan(scenario: str) -> ActivePlan | None:
    """Return the active plan of a scenario by its name, now or at activation, or None."""
    plans = active_plans()
    present_name, name_at_activation = Q(run__scenario__name=scenario), Q(scenario=scenario)
    return plans.filter(present_name).first() or plans.filter(name_at_activation).first()


def activated_plans(scenario: str = "") -> QuerySet[ActivePlan]:
    """Return all active and former plans, newest first.

    ``scenario`` restricts them to one scenario, by its current name or that at activation.
    """
    rows = ActivePlan.objects.select_related("by", "proposal")
    return rows.filter(Q(run__scenario__name=scenario) | Q(scenario=scenario)) if scenario else rows


def activated_plan_get(number: int) -> ActivePlan:
    """Return an active or former plan by number; raise NotFound."""
    return row_by_number(activated_plans(), "plan", number, " that is or was active")


def active_plan_of_run(run: Run) -> ActivePlan | None:
    """Return the active plan for the scenario of a run, or None.

    A saved scenario is found by its row, even after a rename. Otherwise it is found by its name.
    """
    of_scenario = Q(scenario=str((run.result or {}).get("scenario") or run.name)[:120])
    if run.scenario_id is not None:
        of_scenario = Q(run__scenario=run.scenario_id) | (of_scenario & Q(run__scenario=None))
    return active_plans().filter(of_scenario).first()


@dataclass(frozen=True, slots=True)
class AgainstActive:
    """The cost of a result compared with that of the active plan of its scenario."""

    plan: ActivePlan
    change: float  # of the cost, as a share


def against_active(run: Run, policy: str = "") -> AgainstActive | None:
    """Compare a policy (default: the recommended one) with the active plan of the same scenario.

    None: no other plan is active, or its cost is unknown or of another window.
    """
    plan, result = active_plan_of_run(run), stored_result(run)
    policy = policy or result.recommended_policy
    if plan is None or plan.run is None or (plan.run_id, plan.policy) == (run.pk, policy):
        return None
    active = stored_result(plan.run)
    cost, before = (
        stored.policies[name].cost_usd if name in stored.policies else None
        for stored, name in ((result, policy), (active, plan.policy))
    )
    windows = [(w.start, w.end) if (w := stored.window) else None for stored in (result, active)]
    if not cost or not before or windows[0] != windows[1]:
        return None
    return AgainstActive(plan, cost / before - 1)


def active_plan_of_policy(run: Run, policy: str) -> ActivePlan | None:
    """Return the active plan that has the schedule of a run under ``policy``, or None."""
    return active_plans().filter(run=run, policy=policy).first()
