"""Show active and former plans: list, show or compare them, restore, end or branch from them."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import numpy as np
from django.contrib import messages
from django.db.models import Prefetch
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from planner.domain.formats import local, zone_name
from planner.domain.report import Fact
from planner.domain.reports.change import Simulated, change_facts, simulated_policy
from planner.domain.reports.schedule import schedule_of
from planner.models import ActivePlan, Outcome
from planner.outputs.metrics import desired_by_pool
from planner.outputs.plan_difference import pools_by_minute, week_difference
from planner.outputs.proposal_changes import saving_between
from planner.outputs.render.figure import DASHES, FEW_REPLICAS, PALETTE, Figure, figure, line
from planner.outputs.reports import tables_of
from planner.outputs.stored_pools import pools_of
from planner.outputs.weekly_pattern import MINUTES_PER_WEEK, UNKNOWN
from planner.selectors.active_plans import activated_plan_get, activated_plans
from planner.selectors.lookup import id_of
from planner.selectors.review import undecided_proposals
from planner.selectors.runs import stored_result
from planner.services.active_plans import plan_end, plan_restore
from planner.services.scenarios import plan_branch
from planner.web.errors import planners_only
from planner.web.pages.fleet import fleet_plan, outcome_words, replicas_now
from planner.web.pages.setting_lines import setting_line
from planner.web.paging import is_short, page_of
from planner.web.request import Request
from simulation.arrays import IntArray

MONDAY = datetime(2024, 1, 1)  # an arbitrary week: only its weekdays and hours are shown
WEEKDAYS = {"tickformat": "%a", "dtick": 86_400_000, "hoverformat": "%a %H:%M"}
SCENARIOS = 200  # plans to choose from
CHARTS = 2  # of the run: demand and capacity, and replicas per pool
STEPS = (  # shown while the list is empty
    ("1. Propose", "Choose Propose change on the result of a scenario.", ""),
    ("2. Approve", "Another person reviews the proposal and approves it.", ""),
    ("3. Follow", "This page shows the active plan and its next change.", ""),
)


@require_safe
def listing(request: Request) -> HttpResponse:
    """List all plans, or those of a ``scenario``, and compare the plans ``from`` and ``to``."""
    scenario = request.GET.get("scenario", "")
    outcomes = Prefetch("outcomes", Outcome.objects.defer("figures"))
    plans = activated_plans(scenario).defer("pools").prefetch_related(outcomes)
    old, new = (_plan_numbered(request.GET.get(name, "")) for name in ("from", "to"))
    difference = week_difference(old, new) if old and new and old != new else None
    page, now = page_of(request, plans), timezone.now()
    active = next((plan for plan in page if not plan.until), None)
    context = {
        "page": page,
        "rows": [
            (
                plan,
                None if plan.until else replicas_now(plan, now),
                _simulated(plan) if not plan.until or is_short(page) else None,
            )
            for plan in page
        ],
        "shown_plan": fleet_plan(active, now, charts=1) if active and is_short(page) else None,
        "several": page.paginator.count > 1,
        "outcomes": any(plan.outcomes.all() for plan in page),
        "scenario": scenario,
        "scenarios": sorted({*activated_plans().values_list("scenario", flat=True)})[:SCENARIOS],
        "waiting": undecided_proposals(),
        "choices": STEPS,
        "old": old,
        "new": new,
        "found": difference,
        "tiles": _tiles(old, new) if difference and old and new else (),
        "settings": [setting_line(row) for row in difference.settings] if difference else [],
        "week_figure": week_figure([old, new])
        if difference and difference.hours and old and new
        else None,
    }
    return render(request, "web/plans.html", context)


def _simulated(plan: ActivePlan) -> Simulated | None:
    """Return the simulated figures of a plan; None if it was not simulated, or its run is gone."""
    return simulated_policy(stored_result(plan.run), plan.policy) if plan.run else None


def _tiles(old: ActivePlan, new: ActivePlan) -> tuple[Fact, ...]:
    """Return the five figures of the plan ``new``, each with that of ``old``."""
    if old.run is None or new.run is None:
        return ()
    before, after = (
        schedule_of(tables_of(run), policy)
        for run, policy in ((old.run, old.policy), (new.run, new.policy))
    )
    facts = change_facts(
        _simulated(old), _simulated(new),
        before.span if before else None, after.span if after else None,
        saving_between([stored_result(old.run), stored_result(new.run)], [old.policy, new.policy]),
        f"plan {old.pk}:",
    )  # fmt: skip
    return tuple(facts)


@require_safe
def detail(request: Request, pk: int) -> HttpResponse:
    """Show one active or former plan."""
    plan = activated_plan_get(pk)
    now = timezone.now()
    fleet = fleet_plan(plan, now, charts=CHARTS)
    pools = []  # each with its replicas now, at least and at most
    for pool, desired in zip(pools_of(plan), desired_by_pool(plan, now), strict=True):
        counts = [step.replicas for step in pool.steps]
        pools.append((pool, desired.replicas, min(counts, default=None), max(counts, default=None)))
    context = {
        "plan": plan,
        "pools": pools,
        "before": activated_plans(plan.scenario).filter(since__lt=plan.since).first(),
        "outcomes": [(outcome, outcome_words(outcome)) for outcome in plan.outcomes.all()],
        "fleet": fleet,
        # Of a plan whose run is gone, only the replicas are known.
        "week_figure": None if fleet.charts else week_figure([plan]),
        "may_approve": request.user.may_approve,
        "over": plan.repeat == "once" and plan.ends <= now,
    }
    return render(request, "web/plan.html", context)


@require_POST
def restore(request: Request, pk: int) -> HttpResponse:
    """Activate an earlier plan again."""
    again = plan_restore(
        plan=activated_plan_get(pk),
        user=request.user,
        now=timezone.now(),
        message=request.POST.get("message", ""),
    )
    messages.success(request, f"Plan {pk} is active again, as plan {again.pk}.")
    return redirect("web:plan-in-force", again.pk)


@require_POST
def end(request: Request, pk: int) -> HttpResponse:
    """End an active plan without a successor."""
    plan_end(plan=activated_plan_get(pk), user=request.user, now=timezone.now())
    messages.success(request, f"Plan {pk} is no longer active. No plan replaces it.")
    return redirect("web:plan-in-force", pk)


@require_POST
@planners_only
def branch(request: Request, pk: int) -> HttpResponse:
    name = request.POST.get("name", "")
    scenario = plan_branch(plan=activated_plan_get(pk), user=request.user, name=name)
    messages.success(request, f"{scenario.name} is created.")
    return redirect("web:scenario", scenario.pk)


def _plan_numbered(text: str) -> ActivePlan | None:
    """Return the plan with the number ``text``; None for an empty text."""
    return activated_plan_get(id_of(text) or 0) if text else None


def week_figure(plans: Sequence[ActivePlan]) -> Figure | None:
    """Draw the replicas of each deployment of one plan, or the totals of several plans.

    The result is None if no plan has replicas in any minute.
    """
    if len(plans) == 1:
        by_label = {name: counts for (name, _), counts in pools_by_minute(plans[0]).items()}
    else:
        by_label = {f"Plan {plan.pk}": _total(plan) for plan in plans if plan.pools}
    drawn = [
        line(
            *_steps(counts),
            name,
            PALETTE[i % len(PALETTE)],
            dash=DASHES[i % len(DASHES)],
            line_shape="hv",
            hover="%{y:,} replicas",
        )
        for i, (name, counts) in enumerate(by_label.items())
    ]
    if not drawn:
        return None
    largest = max(int(counts.max()) for counts in by_label.values())
    ticks = {"dtick": 1} if largest <= FEW_REPLICAS else {}
    return figure(
        drawn,
        height=300,
        x=f"{zone_name()}, by day",
        y="replicas",
        together=True,
        xaxis=WEEKDAYS,
        yaxis=ticks,
    )


def _total(plan: ActivePlan) -> IntArray:
    """Return the total replicas of a plan by minute; UNKNOWN if one deployment is unknown."""
    counts = np.stack([*pools_by_minute(plan).values()])
    return np.where((counts == UNKNOWN).any(axis=0), UNKNOWN, counts.sum(axis=0))


def _steps(counts: IntArray) -> tuple[list[str], list[int | None]]:
    """Return times and replicas at which a step line changes, in the reader's zone.

    ``counts`` are by minute of a week in UTC. A value is None where it is unknown.
    """
    offset = local(timezone.now()).utcoffset() or timedelta()
    counts = np.roll(counts, offset // timedelta(minutes=1))  # the week is a ring
    edges = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist()]
    values = [int(counts[edge]) for edge in edges]
    shown = [None if value == UNKNOWN else value for value in values]
    times = [MONDAY + timedelta(minutes=edge) for edge in (*edges, MINUTES_PER_WEEK)]
    return [moment.isoformat() for moment in times], [*shown, shown[-1]]
