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
from planner.outputs.proposal_changes import PolicyOfResult, saving_between
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
from planner.web.request import Request, TemplateContext
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
    """List all plans, or those of a ``scenario``, and compare the plans ``from`` and ``to``.

    A short list also has each plan's simulated figures, and one active plan with its chart.
    """
    scenario = request.GET.get("scenario", "")
    outcomes = Prefetch("outcomes", Outcome.objects.defer("figures"))
    plans = activated_plans(scenario).defer("pools").prefetch_related(outcomes)
    old, new = (_plan_numbered(request.GET.get(name, "")) for name in ("from", "to"))
    page, now = page_of(request, plans), timezone.now()
    rows = []  # each plan with its replicas now and its simulated figures
    for plan in page:
        is_active = plan.until is None
        replicas = replicas_now(plan, now) if is_active else None
        simulated = _simulated(plan) if is_active or is_short(page) else None
        rows.append((plan, replicas, simulated))
    active = next((plan for plan in page if plan.until is None), None)
    context: TemplateContext = {
        "page": page,
        "rows": rows,
        "shown_plan": fleet_plan(active, now, charts=1) if active and is_short(page) else None,
        "several": page.paginator.count > 1,
        "outcomes": any(plan.outcomes.all() for plan in page),
        "scenario": scenario,
        "scenarios": sorted({*activated_plans().values_list("scenario", flat=True)})[:SCENARIOS],
        "waiting": undecided_proposals(),
        "choices": STEPS,
        "old": old,
        "new": new,
    }
    if old and new and old != new:
        difference = week_difference(old, new)
        context |= {
            "found": difference,
            "tiles": _tiles(old, new),
            "settings": [setting_line(setting) for setting in difference.settings],
            "week_figure": week_figure([old, new]) if difference.hours else None,
        }
    return render(request, "web/plans.html", context)


def _simulated(plan: ActivePlan) -> Simulated | None:
    """Return the simulated figures of a plan; None if it was not simulated, or its run is gone."""
    if plan.run is None:
        return None
    return simulated_policy(stored_result(plan.run), plan.policy)


def _tiles(old: ActivePlan, new: ActivePlan) -> tuple[Fact, ...]:
    """Return the five figures of the plan ``new``, each with that of ``old``."""
    if old.run is None or new.run is None:
        return ()
    before = schedule_of(tables_of(old.run), old.policy)
    after = schedule_of(tables_of(new.run), new.policy)
    facts = change_facts(
        _simulated(old), _simulated(new),
        before.span if before else None, after.span if after else None,
        saving_between(
            PolicyOfResult(stored_result(old.run), old.policy),
            PolicyOfResult(stored_result(new.run), new.policy),
        ),
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
        (plan,) = plans
        by_label = {name: counts for (name, _), counts in pools_by_minute(plan).items()}
    else:
        by_label = {f"Plan {plan.pk}": _total(plan) for plan in plans if plan.pools}
    if not by_label:
        return None
    drawn = []
    for i, (label, counts) in enumerate(by_label.items()):
        times, replicas = _steps(counts)
        colour, dash = PALETTE[i % len(PALETTE)], DASHES[i % len(DASHES)]
        drawn.append(
            line(
                times, replicas, label, colour, dash=dash, line_shape="hv",
                hover="%{y:,} replicas",
            )
        )  # fmt: skip
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
    """Return (times, replicas) at which a step line changes, in the reader's zone.

    ``counts`` are by minute of a week in UTC. Replicas are None where they are unknown. The last
    time is the end of the week.
    """
    offset = local(timezone.now()).utcoffset() or timedelta()
    counts = np.roll(counts, offset // timedelta(minutes=1))  # the week is a ring
    changes = [0, *(np.flatnonzero(np.diff(counts)) + 1).tolist()]  # minutes
    replicas = [None if count == UNKNOWN else count for count in counts[changes].tolist()]
    minutes = [*changes, MINUTES_PER_WEEK]
    times = [(MONDAY + timedelta(minutes=minute)).isoformat() for minute in minutes]
    return times, [*replicas, replicas[-1]]
