"""Build the page of a proposal: both comparisons, comments and allowed actions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from html import escape

import polars as pl
from django.utils import timezone

from planner.domain.formats import NOTHING, minus
from planner.domain.reports.change import BEFORE, NOW, change_facts, simulated_policy
from planner.domain.reports.frame import window_title
from planner.domain.reports.policies import Span, span_text
from planner.domain.reports.schedule import schedule_of
from planner.domain.results.stored import StoredResult
from planner.models import Proposal, ProposalEntry, Run, User
from planner.outputs.plan_difference import ReplicaChange
from planner.outputs.proposal_changes import (
    REPLAYED,
    ProposalComparison,
    compared_policies,
    outcome_of,
    proposed_of,
    replay_of,
)
from planner.outputs.render.figure import RED, Figure, points
from planner.outputs.reports import tables_of
from planner.policies.base import TODAY
from planner.selectors.review import approvals_of, authors_of, proposal_entries, review_rules
from planner.selectors.run_comparison_figures import Setting
from planner.selectors.runs import run_tables, stored_result
from planner.services.approval import (
    barred_authors,
    checks_of,
    missing_approvals,
    people_to_ask,
    waiting_for,
    why_not_approvable,
    why_outdated,
)
from planner.services.proposals import CHART, SETTING
from planner.web.charts.run_comparison import Course, course_figure
from planner.web.pages.run_comparison import course_of, figure_line
from planner.web.pages.setting_lines import Line, setting_line
from planner.web.request import TemplateContext

REPLICAS, COST = "replicas", "cost"  # charts that may be commented on (data-about)
STATE_COLOURS = {
    "draft": "secondary",
    "open": "blue",
    "changes": "orange",
    "approved": "green",
    "rejected": "red",
    "withdrawn": "secondary",
}
ENTRY_ICONS = {
    "approved": "check",
    "in-force": "check",
    "changes": "alert",
    "rejected": "alert",
    "amended": "runs",
    "requested": "user",
}


@dataclass(frozen=True, slots=True)
class SettingThread:
    """A setting that the proposal changes, with the comments on it."""

    key: str
    line: Line
    entries: tuple[ProposalEntry, ...]


@dataclass(frozen=True, slots=True)
class PoolChange:
    """The replicas of a pool, least to most, before and as proposed, as text."""

    name: str
    before: str
    after: str
    more: float | None  # change of the mean; None: not known
    change: str  # the same, as text


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an undecided proposal does, for lists.

    ``usd_per_day`` is the change of the cost, or None if it is not known. ``failed`` are the names
    of the failed checks. ``outdated`` proposals must be amended: their change of the cost is not
    known, because the plan that they were compared with has changed.
    """

    usd_per_day: float | None
    failed: tuple[str, ...]
    outdated: bool


def verdict_of(proposal: Proposal) -> Verdict | None:
    """Return the change of the cost per day and the failed checks; None without a run."""
    if proposal.run is None:
        return None
    base, proposed = compared_policies(proposal, proposal.run)
    before = simulated_policy(base.result, base.policy)
    after = simulated_policy(proposed.result, proposed.policy)
    before_usd = before.usd_per_day if before else None
    after_usd = after.usd_per_day if after else None
    outdated, change_usd = bool(why_outdated(proposal)), None
    if before_usd is not None and after_usd is not None and not outdated:
        change_usd = after_usd - before_usd
    checks = checks_of(proposal, proposed.result, after, timezone.now())
    failed = tuple(check.name for check in checks if check.passed is False)
    return Verdict(usd_per_day=change_usd, failed=failed, outdated=outdated)


def proposal_context(proposal: Proposal, user: User) -> TemplateContext:
    """Return the context of a proposal's page: plan, comparison, entries and possible actions.

    "found", "settings", "groups", "worse", "better" and the keys of ``_difference`` are of the
    comparison. They are empty or missing if it cannot be made.
    """
    entries = proposal_entries(proposal)
    proposed = proposed_of(proposal)
    undecided = proposal.is_undecided
    why_stale = why_outdated(proposal) if undecided else ""
    base_is_present = undecided and not why_stale  # it is compared with the present fleet
    may_amend = user.may_plan and undecided
    run = proposal.run
    course = _course(*outcome_of(proposal, run), "Proposed") if run else None
    return {
        "proposal": proposal,
        "colour": STATE_COLOURS[proposal.state],
        "entries": [(entry, ENTRY_ICONS.get(entry.kind, "info")) for entry in entries],
        "found": proposed,
        "settings": _threads(proposed.settings, entries) if proposed else [],
        "groups": [
            (group.title, group.note, list(map(figure_line, group.rows)))
            for group in (proposed.groups if proposed else ())
        ],
        "worse": list(map(figure_line, proposed.worse)) if proposed else [],
        "better": list(map(figure_line, proposed.better)) if proposed else [],
        **(_difference(proposal, proposed, course, now=base_is_present) if proposed else {}),
        "rules": review_rules(),
        "missing": missing_approvals(proposal) if undecided else "",
        "approvals": approvals_of(proposal),
        "stale": why_stale,
        "why_not": why_not_approvable(proposal, user) if user.may_approve else "",
        "is_author": user.pk in barred_authors(proposal),
        "waiting_for": waiting_for(proposal) if undecided else "",
        "may_decide": user.may_approve,
        "mine": user.pk in authors_of(proposal) or user.may_administer,
        "may_say": user.may_plan,
        "reviewers": proposal.reviewers.all(),
        "askable": people_to_ask(proposal) if may_amend else [],
        "amendable": _runs_like(proposal) if may_amend else [],
        "window": _window(run),
        "holds": proposal.plans.filter(until=None).exists(),
        **_charts(proposal, entries, course, now=base_is_present),
    }


def _window(run: Run | None) -> str:
    """Return what the proposed plan was made for: a backtest or a forecast, and its day."""
    window = stored_result(run).window if run else None
    return "" if window is None else window_title(window)


def _threads(settings: Iterable[Setting], entries: Sequence[ProposalEntry]) -> list[SettingThread]:
    """Return the changed ``settings``, each with those ``entries`` that comment on it."""
    threads = []
    for setting in settings:
        comments = tuple(entry for entry in entries if entry.anchor.get(SETTING) == setting.key)
        threads.append(SettingThread(setting.key, setting_line(setting), comments))
    return threads


def _difference(
    proposal: Proposal, proposed: ProposalComparison, course: Course | None, *, now: bool
) -> TemplateContext:
    """Return figures, checks, and the replicas of each pool before and as proposed.

    ``course`` is the proposed run over time. ``now`` tells whether the fleet that it is compared
    with is still the present one.
    """
    assert proposal.run is not None
    base_policy, proposed_policy = compared_policies(proposal, proposal.run)
    before = simulated_policy(base_policy.result, base_policy.policy)
    after = simulated_policy(proposed_policy.result, proposed_policy.policy)
    total, pools = proposed.total, list(proposed.pools)
    if len(pools) > 1:
        pools.append(total)
    # Replicas before have the head "Now" or "Before". Figures before have another head if they are
    # of a policy of the proposed run, or of the active plan replayed on that run's traffic.
    default_label = NOW if now else BEFORE
    replicas_head = default_label.capitalize().removesuffix(":")
    replayed = f"{replicas_head}, replayed" if replay_of(proposal) is not None else ""
    base_label = _baseline_label(proposal) or replayed
    before_label = f"{base_label}:" if base_label else default_label
    span_before, span_after = _spans(total)
    counts = course.table["ready"].to_list() if course else []
    simulated_span = (round(min(counts)), round(max(counts))) if counts else None
    tiles = change_facts(
        before, after, span_before, span_after, proposed.saving, before_label, simulated_span
    )
    return {
        "tiles": list(tiles),
        "was_head": f"num:{replicas_head}",
        "base_head": f"num:{base_label or replicas_head}",
        "checks": sorted(
            checks_of(proposal, proposed_policy.result, after, timezone.now()),
            key=lambda check: check.passed is not False,  # failed ones first
        ),
        "pools": [_pool_change(pool, total) for pool in pools],
    }


def _spans(change: ReplicaChange) -> tuple[Span | None, Span | None]:
    """Return (before, as proposed): the least and the most replicas; None if not known."""
    before, after = (
        None if least is None or most is None else (least, most)
        for least, most in zip(change.least, change.most, strict=True)
    )
    return before, after


def _pool_change(change: ReplicaChange, total: ReplicaChange) -> PoolChange:
    """Return the change of a pool as text.

    ``total`` is the change of all pools; where it is None, that plan's replicas are not known. In a
    known plan, a pool that it lacks has 0 replicas. Unless both are known, the change is not known.
    """
    knows_before, knows_after = (mean is not None for mean in total.mean)
    span_before, span_after = _spans(change)
    before = span_text(span_before or (0, 0)) if knows_before else NOTHING
    after = span_text(span_after or (0, 0)) if knows_after else NOTHING
    if not knows_before or not knows_after:
        return PoolChange(change.title, before, after, None, NOTHING)
    mean_before, mean_after = change.mean
    more = round((mean_after or 0.0) - (mean_before or 0.0), 1)
    words = minus(f"{more:+.1f}") if more else "0"
    return PoolChange(change.title, before, after, more, words)


def _runs_like(proposal: Proposal) -> list[Run]:
    """Return at most 30 runs that could replace the proposal's run, those of its scenario first.

    Only the newest 100 completed plans and comparisons outside sweeps are offered.
    """
    kinds = (Run.Kind.PLAN, Run.Kind.COMPARE)
    rows = Run.objects.filter(kind__in=kinds, state=Run.State.COMPLETED, sweep=None)
    runs = list(rows.defer("document", "log", "result", "traceback")[:100])
    return sorted(runs, key=lambda run: (run.scenario_id != proposal.scenario_id, -run.pk))[:30]


def _charts(
    proposal: Proposal, entries: Sequence[ProposalEntry], course: Course | None, *, now: bool
) -> dict[str, Figure | None]:
    """Draw replicas and cost of the proposed run and of the run it is compared with.

    ``course`` is the proposed run over time. Replicas are those of its schedule, if it has one;
    those of the simulation are added if they are more. Comments on the current revision appear as
    points. The result is empty without a run.
    """
    run = proposal.run
    if run is None:
        return {}
    base_run, policy, label = _comparison_base(proposal, now=now)
    base_course = _course(base_run, policy, label, base=True) if base_run is not None else None
    base_courses = [base_course] if base_course else []
    cost_courses = [*base_courses, course] if course else base_courses
    replica_courses = cost_courses  # unless there is a schedule
    schedule = _schedule_course(*outcome_of(proposal, run), course) if course else None
    if course and schedule:
        replica_courses = [*base_courses, schedule]
        if round(max(course.table["ready"])) > max(schedule.table["ready"]):
            guarded = "guard" in stored_result(run).labels.get(proposal.policy, "")
            simulated_label = "With the guard, simulated" if guarded else "As simulated"
            replica_courses.append(replace(course, label=simulated_label, added=True))
    comments = [entry for entry in entries if entry.revision == proposal.revision]
    result = stored_result(run)
    different_windows = base_run is not None and _start(stored_result(base_run)) != _start(result)
    figures = {
        REPLICAS: course_figure(
            replica_courses, "ready", "replicas", clock=result.clock, apart=different_windows
        ),
        COST: course_figure(
            cost_courses, "usd_per_hour", "$ an hour", clock=result.clock, apart=different_windows
        ),
    }
    return {
        f"{chart}_figure": _with_comments(figure, chart, comments)
        for chart, figure in figures.items()
    }


def _schedule_course(run: Run, policy: str, simulated: Course) -> Course | None:
    """Return the replicas of a policy's schedule over the time of its simulation.

    None if it has no schedule, or scales by its own rule.
    """
    schedule = schedule_of(tables_of(run), policy)
    if schedule is None or schedule.by_itself:
        return None
    times = simulated.table["time"]
    first, last = times.min(), times.max()
    counts = {}  # replicas from each time on
    for row, count in zip(schedule.rows, schedule.totals, strict=True):
        # A row before the first time holds at that time.
        counts[max(row.period or row.begins, first)] = count  # type: ignore[type-var]
    counts[last] = schedule.totals[-1]
    steps = {"time": list(counts), "ready": list(counts.values())}
    return Course("Schedule", pl.DataFrame(steps, schema_overrides={"time": times.dtype}))


def _start(result: StoredResult) -> datetime | None:
    """Return the start of a result's window; None if it has no window."""
    return result.window.start if result.window else None


def _with_comments(
    figure: Figure | None, chart: str, entries: Sequence[ProposalEntry]
) -> Figure | None:
    """Return the figure of ``chart`` with a point for each entry that comments on a point of it.

    None if there is no figure.
    """
    comments = [
        entry for entry in entries if entry.anchor.get(CHART) == chart and "value" in entry.anchor
    ]
    if figure is None or not comments:
        return figure
    marks = points(
        [_number_or_time(comment.anchor["time"]) for comment in comments],
        [_number_or_time(comment.anchor["value"]) for comment in comments],
        "Comments",
        RED,
        symbol="diamond",
        hover="%{text}",
        text=[escape(f"{entry.by or entry.rule}: {entry.text[:80]}") for entry in comments],
    )
    return {**figure, "data": [*figure["data"], marks]}


def _number_or_time(text: str) -> float | str:
    """Return a position on an axis as a number; a time stays text."""
    try:
        return float(text)
    except ValueError:
        return text


def _comparison_base(proposal: Proposal, *, now: bool) -> tuple[Run | None, str, str]:
    """Return (run, policy, label in charts) that the proposal is compared with.

    It is the first that exists of: the replay of the active plan, the completed base run, and the
    policy that the proposed run was compared with. Without any, the result is (None, "", ""). The
    policy is "" for a base run without an active plan. ``now``: the base is what runs at present.
    """
    label = _baseline_label(proposal) or ("Now" if now else "Before the plan")
    replay, base_run, active = replay_of(proposal), proposal.base_run, proposal.base
    if replay is not None:
        return replay, REPLAYED, label
    if base_run is not None and base_run.state == Run.State.COMPLETED:
        is_run_of_active = active is not None and active.run_id == base_run.pk
        return base_run, active.policy if active and is_run_of_active else "", label
    if proposal.run is None:
        return None, "", ""
    base, _ = compared_policies(proposal, proposal.run)
    return (proposal.run, base.policy, label) if base.policy else (None, "", "")


def _baseline_label(proposal: Proposal) -> str:
    """Return the policy with which a proposal is compared in place of the present fleet.

    It is "" if the present fleet (an active plan or a base run) is known.
    """
    base_run = proposal.base_run
    has_base_run = base_run is not None and base_run.state == Run.State.COMPLETED
    if proposal.run is None or proposal.base or has_base_run or replay_of(proposal) is not None:
        return ""
    base, _ = compared_policies(proposal, proposal.run)
    return "" if base.policy in ("", TODAY) else base.result.labels[base.policy]


def _course(run: Run, policy: str, label: str, *, base: bool = False) -> Course | None:
    """Return the replicas of a run over time under ``policy``, as a line of a chart.

    None if the run has no tables. ``base`` marks the line that the proposal is compared with.
    """
    if not run_tables(run):
        return None
    course = course_of(run, policy if policy in stored_result(run).policies else "")
    return Course(label, course.table, base) if course else None
