"""Build the home page: the active plans, what needs attention, and what waits for review."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import cast
from zoneinfo import ZoneInfo

from planner.domain.formats import figure, when
from planner.domain.report import Chart, Fact, Meaning, Note, Report, Role, Series
from planner.domain.reports.active_plan import after_activation
from planner.domain.reports.change import SEASON, days_old
from planner.domain.results.stored import StoredPolicy
from planner.models import ActivePlan, Firing, Outcome, Proposal, Run, Source, User
from planner.outputs.metrics import (
    desired_by_pool,
    gpu_hours_planned,
    gpu_hours_requested,
    next_change,
)
from planner.outputs.render.html import ShownBlock, display_charts
from planner.outputs.reports import policy_report
from planner.outputs.weekly_pattern import CYCLE_MINUTES, Repeat
from planner.selectors.active_plans import active_plans
from planner.selectors.review import undecided_proposals
from planner.selectors.runs import stored_result
from planner.services.approval import (
    data_age,
    people_to_ask,
    waiting_for,
    why_not_approvable,
    why_outdated,
)
from planner.web.pages.fleet_services import Service, services_now
from planner.web.request import TemplateContext

MOST = 3  # plans with a chart
ITEMS = 6  # lines of a list
MINUTE = timedelta(minutes=1)
COSTS = ("Cost", "Planned cost")  # beginnings of the labels of a cost


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """An active plan with its figures, its chart, and its last outcome."""

    plan: ActivePlan
    facts: tuple[Fact, ...]
    charts: tuple[ShownBlock, ...]
    about: str  # the window of the chart
    services: list[Service]
    trust: tuple[Fact, ...]  # how sure the plan is; the first fact is about actual demand
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem that needs attention, with the page about it."""

    text: str
    page: str
    key: int | str


@dataclass(frozen=True, slots=True)
class NextStep:
    """What the user should do next: the reason, and the button that leads there."""

    reason: str
    label: str  # of the button
    page: str
    key: int | str | None = None  # of the page's object


def fleet_context(now: datetime, user: User) -> TemplateContext:
    """Return the active plans, the alerts, the undecided proposals, and the next step.

    Proposals to review are those that ``user`` could approve and that change the active plan.
    """
    undecided = undecided_proposals().select_related("base")
    to_review = [
        proposal
        for proposal in undecided.filter(state=Proposal.State.OPEN)
        if not proposal.repeats_active_plan and not why_not_approvable(proposal, user)
    ]
    own_proposals = [
        proposal
        for proposal in undecided.filter(state=Proposal.State.OPEN, author=user)
        if not proposal.repeats_active_plan and proposal not in to_review
    ]
    plans, alerts = list(active_plans()[:ITEMS]), list(_alerts())[:ITEMS]
    is_live = Source.objects.exists()
    outdated = [proposal for proposal in own_proposals if why_outdated(proposal)]
    # A proposal that waits for others is no step beside an active plan, unless it replaces another.
    waits = not plans or bool(outdated)
    waiting = [proposal for proposal in own_proposals if waits and proposal not in outdated]
    next_steps = chain(  # in order of urgency; only the first one is computed and shown
        _review_steps(to_review),
        (NextStep(alert.text, "Open", alert.page, alert.key) for alert in alerts),
        _waiting_steps(waiting),
        _outdated_steps(outdated),
        _plan_steps(plans, now, is_live=is_live) if user.may_plan else (),
    )
    fleet_plans = [fleet_plan(plan, now, charts=i < MOST) for i, plan in enumerate(plans)]
    return {
        "plans": fleet_plans,
        "alerts": alerts,
        "waiting": list(undecided[:ITEMS]),
        "to_review": to_review,
        "is_live": is_live,
        "is_checked": is_live and not any(map(is_in_doubt, fleet_plans)),
        "next_step": next(next_steps, None),
    }


def _review_steps(to_review: Sequence[Proposal]) -> Iterator[NextStep]:
    """Yield the step that leads to the proposals that the user can approve; nothing without any."""
    if len(to_review) > 1:
        yield NextStep(f"{len(to_review)} proposals need your decision.", "Review", "proposals")
    elif to_review:
        (proposal,) = to_review
        reason = f"“{proposal.title}” needs your decision."
        if proposal.usd_30d is not None:
            reason += f" With it, the fleet costs {figure(proposal.usd_30d, '$')} in 30 days."
        yield NextStep(reason, "Open proposal", "proposal", proposal.pk)


def _waiting_steps(own_proposals: Iterable[Proposal]) -> Iterator[NextStep]:
    """Yield the next step for each of the user's open proposals."""
    for proposal in own_proposals:
        reason = f"Your proposal “{proposal.title}” {waiting_for(proposal)}."
        label = "Ask for approval" if people_to_ask(proposal) else "Open proposal"
        yield NextStep(reason, label, "proposal", proposal.pk)


def _outdated_steps(outdated: Iterable[Proposal]) -> Iterator[NextStep]:
    """Yield the next step for each of the user's proposals whose active plan changed."""
    for proposal in outdated:
        reason = f"Your proposal “{proposal.title}” is out of date: the active plan changed."
        yield NextStep(reason, "Amend proposal", "proposal", proposal.pk)


def _plan_steps(plans: Sequence[ActivePlan], now: datetime, *, is_live: bool) -> Iterator[NextStep]:
    """Yield the steps that keep the active plans current.

    A plan that has ended needs a new run. A plan without a live source cannot be checked.
    """
    for plan in plans:
        if plan.repeat == "once" and plan.ends <= now:
            reason = f"The plan of {plan.scenario} ended on {_day(plan.ends)}."
            if plan.run and plan.run.scenario_id:
                yield NextStep(reason, "Plan the next period", "scenario", plan.run.scenario_id)
            else:
                yield NextStep(reason, "Open plan", "plan-in-force", plan.pk)
    if plans and not is_live:
        reason = "Live traffic is not measured yet, so nothing confirms this plan."
        yield NextStep(reason, "Connect a live source", "sources")


def fleet_plan(plan: ActivePlan, now: datetime, *, charts: int) -> FleetPlan:
    """Return a plan with its figures, its last outcome and up to ``charts`` charts.

    What holds at ``now``, such as the present replicas, is only in that of an active plan. A plan
    whose run was removed has no figures and charts.
    """
    report = policy_report(plan.run, plan.policy) if plan.run else None
    is_active = plan.until is None
    simulated_now = _in_window(plan, now) if is_active else None
    # Figures and charts are about the simulated day, which a repeating plan moves to today.
    about = f"simulated for {_date(plan)}"
    if plan.repeat != "once" and simulated_now is not None:
        about = f"today's schedule, demand of {_date(plan)}"
    outcome = plan.outcomes.filter(state=Outcome.State.DONE).first()
    trust = [_actual_fact(outcome)]
    if report and plan.run:
        trust += with_data_age(report, plan.run, now).trust
    return FleetPlan(
        plan=plan,
        facts=(
            *(_present(plan, now) if is_active else ()),
            *_saved_fact(plan, now),
            *(_key_facts(report) if report else ()),
        ),
        charts=_charts(plan, report, simulated_now, now, charts) if report else (),
        about=about,
        services=services_now(plan, now) if is_active else [],
        trust=tuple(trust),
        outcome=outcome,
    )


def is_in_doubt(shown: FleetPlan) -> bool:
    """Return whether an active plan needs a check: one of its facts is a risk or missed."""
    return any(fact.meaning in (Meaning.RISK, Meaning.MISSED) for fact in shown.trust)


def _actual_fact(outcome: Outcome | None) -> Fact:
    """Return whether the last comparison with actual demand shows that the plan held."""
    if outcome is None:
        unknown = "not compared yet" if Source.objects.exists() else "not measured"
        return Fact("Live traffic", unknown, meaning=Meaning.RISK)
    words = outcome_words(outcome)
    return Fact(
        "Plan versus actual", words, meaning=Meaning.MET if words == "held" else Meaning.RISK
    )


def with_data_age(report: Report, run: Run, now: datetime) -> Report:
    """Return ``report`` with the age of the run's traffic.

    It is the second of the facts ``trust``, which say how far to trust the report. The end of the
    traffic is added to the section "sources". Without such facts or a known age, the report stays.
    """
    age = data_age(run, stored_result(run), now)
    if not report.trust or age is None:
        return report
    is_old = age > SEASON
    meaning = Meaning.RISK if is_old else Meaning.MET
    age_fact = Fact("Data", f"{days_old(age):,} days old", meaning=meaning, link="sources")
    warning = f", more than {SEASON.days} days ago. Demand may have changed" if is_old else ""
    end_note = Note(f"The planning data ends on {when(now - age)}{warning}.")
    sections = []
    for section in report.sections:
        if section.anchor == age_fact.link:
            section = replace(section, blocks=(end_note, *section.blocks))
        sections.append(section)
    tested, *others = report.trust
    return replace(report, trust=(tested, age_fact, *others), sections=tuple(sections))


def outcome_words(outcome: Outcome) -> str:
    """Return whether a plan had enough replicas: "held", or for how many hours it was short.

    While the evaluation is not done, return its state.
    """
    if outcome.state != Outcome.State.DONE:
        return outcome.get_state_display().lower()
    short_hours = float(outcome.figures.get("short_hours") or 0.0)
    return f"short for {figure(short_hours)} h" if short_hours else "held"


def replicas_now(plan: ActivePlan, now: datetime) -> int | None:
    """Return the replicas that a plan states for now; None outside its window."""
    counts = [pool.replicas for pool in desired_by_pool(plan, now)]
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _date(plan: ActivePlan) -> str:
    """Return the first day of a plan's window, in the plan's zone."""
    return f"{plan.begins.astimezone(ZoneInfo(plan.zone)):%-d %b %Y}"


def _day(moment: datetime) -> str:
    return when(moment).partition(", ")[0]


def _present(plan: ActivePlan, now: datetime) -> Iterator[Fact]:
    """Yield the current replicas of an active plan and their next change."""
    yield Fact("Scheduled now", replicas_now(plan, now), "replicas", note=plan.label or plan.policy)
    change = next_change(plan, now)
    if change is not None:
        date, _, clock = when(change.at).partition(", ")
        moved = f"{change.before:,} to {change.after:,} replicas, {date}"
        yield Fact("Next change", clock, note=moved)
    else:
        yield Fact("Next change", "none", note="within a week")


def _saved_fact(plan: ActivePlan, now: datetime) -> Iterator[Fact]:
    """Yield the dollars that a plan saved while it was active; nothing if that is unknown."""
    if plan.run is None:
        return
    policies = stored_result(plan.run).policies
    baseline = stored_result(plan.run).baseline
    plan_usd = policies.get(plan.policy, StoredPolicy()).cost_usd
    baseline_usd = policies.get(baseline, StoredPolicy()).cost_usd
    if plan_usd is None or baseline_usd is None:
        return
    saved = _saved_usd(plan, min(now, plan.until or now), plan_usd, baseline_usd)
    if saved is None:
        return
    if plan.until:
        note = f"{_day(plan.since)} to {_day(plan.until)}"
    else:
        note = f"since {when(plan.since)}"
    yield Fact("Savings by schedule", saved, "$", note=note)


def _saved_usd(
    plan: ActivePlan, now: datetime, plan_usd: float, baseline_usd: float
) -> float | None:
    """Return the dollars that the schedule of a plan saved up to ``now``; None without a schedule.

    ``plan_usd`` and ``baseline_usd`` are the costs of the planned window with and without the plan.
    The cost so far follows the scheduled GPU-hours, at their mean price in the window.
    """
    begins, ends = plan.since, now
    if plan.repeat == "once":
        begins, ends = max(begins, plan.begins), min(ends, plan.ends)
    window_gpu_hours = gpu_hours_planned(plan, plan.begins, plan.ends)
    if not window_gpu_hours:
        return None
    # Whole minutes, as the schedule is counted: both costs must cover the same time.
    minutes = max(ends - begins, timedelta(0)) // MINUTE
    ends = begins + minutes * MINUTE
    windows_elapsed = (ends - begins) / (plan.ends - plan.begins)
    gpu_hours = gpu_hours_requested(plan, begins, ends)
    return baseline_usd * windows_elapsed - plan_usd * gpu_hours / window_gpu_hours


def _key_facts(report: Report) -> Iterator[Fact]:
    """Yield cost and SLO attainment of the active plan."""
    for fact in after_activation(report).facts:
        if fact.label.startswith(COSTS):
            yield replace(fact, note="") if fact.change else fact  # a change needs no note
        elif fact.label.startswith("SLO attainment"):
            yield replace(fact, meaning=Meaning.NEUTRAL)  # green would look measured


def _charts(
    plan: ActivePlan, report: Report, moment: datetime | None, now: datetime, most: int
) -> tuple[ShownBlock, ...]:
    """Return up to ``most`` charts of the plan's report, the first with a line at the present time.

    ``moment`` is the time in the planned window whose replicas the plan uses now, or None. A plan
    that repeats is drawn as if its window were now, so that this time is the present one.
    """
    # Times of a trace without dates stay as they are.
    shift = now - moment if moment and report.clock == "utc" else timedelta(0)
    charts: list[Chart] = []
    for chart in report.charts[:most]:
        lines = []
        for line in chart.series:
            label = line.label
            if line.role is Role.RECOMMENDED:
                label = "Capacity, active plan, simulated"
            elif line.role is Role.BASELINE:  # a fleet that the plan has replaced
                continue
            x = tuple(x + shift if isinstance(x, datetime) else x for x in line.x)
            lines.append(replace(line, label=label, x=x))
        is_first = not charts
        if is_first and moment is not None:
            # The line goes from 0 to the top of the axis, by default the largest value.
            top = chart.y.top or max((y or 0.0 for line in lines for y in line.y), default=0.0)
            present = moment + shift
            lines.append(Series("Now", (present, present), (0.0, top), Role.LIMIT))
        charts.append(replace(chart, series=tuple(lines)))
    dated_report = replace(report, charts=tuple(charts))
    return display_charts(dated_report, live=True, prefix=f"plan-{plan.pk}")


def _in_window(plan: ActivePlan, now: datetime) -> datetime | None:
    """Return the time in the planned window whose replicas the plan uses at ``now``.

    A plan that repeats uses those of the same time of day or week. Return None if there is none.
    """
    if plan.repeat == "once":
        return now if plan.begins <= now < plan.ends else None
    zone, cycle = ZoneInfo(plan.zone), timedelta(minutes=CYCLE_MINUTES[cast(Repeat, plan.repeat)])
    begins, ends, present = (
        time.astimezone(zone).replace(tzinfo=None) for time in (plan.begins, plan.ends, now)
    )
    moment = begins + (present - begins) % cycle
    if moment >= ends:  # as in ``replicas_without_gaps``, another day has this time of day
        moment = begins + (moment - begins) % timedelta(days=1)
    moment = moment.replace(tzinfo=zone).astimezone(UTC)
    return moment if moment < plan.ends else None


def _alerts() -> Iterator[Alert]:
    """Yield alerts for sources that cannot be read, and failed schedules and plans."""
    for source in Source.objects.filter(state=Source.State.PROBLEM)[:ITEMS]:
        yield Alert(f"Live source {source.name} cannot be read", "source", source.name)
    failed = (Firing.State.FAILED, Firing.State.MISSED)
    seen = set()  # only the last firing of a schedule counts
    for firing in Firing.objects.select_related("schedule").order_by("-due_at")[:ITEMS]:
        if firing.schedule_id not in seen and firing.state in failed:
            state = firing.get_state_display().lower()
            yield Alert(f"Schedule {firing.schedule.name}: {state}", "schedule", firing.schedule_id)
        seen.add(firing.schedule_id)
    for outcome in Outcome.objects.filter(state=Outcome.State.DONE).select_related("plan")[:ITEMS]:
        drifts = [*(outcome.figures.get("lengths") or []), *(outcome.figures.get("speed") or [])]
        if any(drift.get("flagged") for drift in drifts):
            yield Alert(f"Drift in {outcome.plan.scenario}", "outcome", outcome.pk)
