"""Read active plans, at most one per scenario, and former ones."""

from django.db.models import Q, QuerySet

from planner.domain.results.stored import StoredResult
from planner.models import ActivePlan, Run
from planner.selectors.lookup import row_by_number
from planner.selectors.runs import stored_result


def active_plans() -> QuerySet[ActivePlan]:
    """Return all active plans, newest first; their large runs are loaded only on access."""
    return ActivePlan.objects.select_related("by").filter(until=None)


def active_plan(scenario: str) -> ActivePlan | None:
    """Return the active plan of the scenario with this name, now or at activation, or None."""
    plans = active_plans()
    current_name, name_at_activation = Q(run__scenario__name=scenario), Q(scenario=scenario)
    return plans.filter(current_name).first() or plans.filter(name_at_activation).first()


def activated_plans(scenario: str = "") -> QuerySet[ActivePlan]:
    """Return the active and former plans of a scenario, newest first; "": of all scenarios.

    ``scenario`` is its name, now or at activation.
    """
    plans = ActivePlan.objects.select_related("by", "proposal")
    if not scenario:
        return plans
    return plans.filter(Q(run__scenario__name=scenario) | Q(scenario=scenario))


def activated_plan_get(number: int) -> ActivePlan:
    """Return an active or former plan by number; raise NotFound."""
    return row_by_number(activated_plans(), "plan", number, " that is or was active")


def active_plan_of_run(run: Run) -> ActivePlan | None:
    """Return the active plan for the scenario of a run, or None.

    A stored scenario is found by its row, even after a rename, any other by its name.
    """
    # Plans store at most 120 characters of the name.
    of_scenario = Q(scenario=str((run.result or {}).get("scenario") or run.name)[:120])
    if run.scenario_id is not None:
        of_scenario = Q(run__scenario=run.scenario_id) | (of_scenario & Q(run__scenario=None))
    return active_plans().filter(of_scenario).first()


def compares_with(plan: ActivePlan, result: StoredResult, policy: str) -> bool:
    """Return whether an active plan and the ``policy`` of a result were simulated in one window."""
    active = stored_result(plan.run) if plan.run else StoredResult()
    if active.window is None or result.window is None:
        return False
    both_simulated = policy in result.policies and plan.policy in active.policies
    same_start = active.window.start == result.window.start
    return both_simulated and same_start and active.window.end == result.window.end


def active_plan_of_policy(run: Run, policy: str) -> ActivePlan | None:
    """Return the active plan that has the schedule of a run under ``policy``, or None."""
    return active_plans().filter(run=run, policy=policy).first()
