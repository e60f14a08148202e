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
from planner.selectors.run_comparison_figures import ComparedFigure
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
    of the failed checks.
    """

    usd_per_day: float | None
    failed: tuple[str, ...]


def verdict_of(proposal: Proposal) -> Verdict | None:
    """Return the change of the cost per day and the failed checks; None without a run."""
    if proposal.run is None:
        return None
    (result_before, result), (name_before, name) = compared_policies(proposal, proposal.run)
    before, after = simulated_policy(result_before, name_before), simulated_policy(result, name)
    was, now = (each.usd_per_day if each else None for each in (before, after))
    checks = checks_of(proposal, result, after, timezone.now())
    return Verdict(
        usd_per_day=None if was is None or now is None else now - was,
        failed=tuple(check.name for check in checks if check.passed is False),
    )


def proposal_context(proposal: Proposal, user: User) -> TemplateContext:
    """Return the context of a proposal's page: plan, comparison, entries and possible actions."""
    entries = proposal_entries(proposal)
    proposed = proposed_of(proposal)
    may_say, undecided = user.may_plan, proposal.is_undecided
    stale = why_outdated(proposal) if undecided else ""
    now = undecided and not stale  # it is compared with the present fleet
    run = proposal.run
    course = _course(*outcome_of(proposal, run), "Proposed") if run else None
    return {
        "proposal": proposal,
        "colour": STATE_COLOURS[proposal.state],
        "entries": [(entry, ENTRY_ICONS.get(entry.kind, "info")) for entry in entries],
        "found": proposed,
        "settings": _threads(proposed, entries),
        "groups": _groups(proposed),
        "worse": _lines(proposed.worse) if proposed else [],
        "better": _lines(proposed.better) if proposed else [],
        **(_difference(proposal, proposed, course, now=now) if proposed else {}),
        "rules": review_rules(),
        "missing": missing_approvals(proposal) if undecided else "",
        "approvals": approvals_of(proposal),
        "stale": stale,
        "why_not": why_not_approvable(proposal, user) if user.may_approve else "",
        "is_author": user.pk in barred_authors(proposal),
        "waiting_for": waiting_for(proposal) if undecided else "",
        "may_decide": user.may_approve,
        "mine": user.pk in authors_of(proposal) or user.may_administer,
        "may_say": may_say,
        "reviewers": proposal.reviewers.all(),
        "askable": people_to_ask(proposal) if may_say and undecided else [],
        "amendable": _runs_like(proposal) if may_say and undecided else [],
        "window": _window(run),
        "holds": proposal.plans.filter(until=None).exists(),
        **_charts(proposal, entries, course, now=now),
    }


def _window(run: Run | None) -> str:
    """Return what the proposed plan was made for: a backtest or a forecast, and its day."""
    window = stored_result(run).window if run else None
    return "" if window is None else window_title(window)


def _threads(
    proposed: ProposalComparison | None, entries: Sequence[ProposalEntry]
) -> list[SettingThread]:
    """Return each setting that the proposal changes, with the comments on it."""
    if proposed is None:
        return []
    return [
        SettingThread(
            row.key,
            setting_line(row),
            tuple(entry for entry in entries if entry.anchor.get(SETTING) == row.key),
        )
        for row in proposed.settings
    ]


def _groups(proposed: ProposalComparison | None) -> list[tuple[str, str, list[Line]]]:
    """Return title, note and lines of each group of compared figures."""
    groups = proposed.groups if proposed else ()
    return [(group.title, group.note, _lines(group.rows)) for group in groups]


def _lines(rows: Iterable[ComparedFigure]) -> list[Line]:
    return [figure_line(row) for row in rows]


def _difference(
    proposal: Proposal, proposed: ProposalComparison, course: Course | None, *, now: bool
) -> TemplateContext:
    """Return figures, checks, and the replicas of each pool before and as proposed.

    ``course`` is the proposed run over time. ``now`` tells whether the fleet that it is compared
    with is still the present one.
    """
    assert proposal.run is not None
    pair, names = compared_policies(proposal, proposal.run)
    before, after = (simulated_policy(*outcome) for outcome in zip(pair, names, strict=True))
    total, pools = proposed.total, list(proposed.pools)
    if len(pools) > 1:
        pools.append(total)
    was = NOW if now else BEFORE
    was_head = was.capitalize().removesuffix(":")
    # The active plan has other figures on the traffic of another run.
    replayed = f"{was_head}, replayed" if replay_of(proposal) is not None else ""
    base = _baseline_label(proposal) or replayed
    note = f"{base}:" if base else was
    tiles = change_facts(
        before, after, *_spans(total), proposed.saving, note, _simulated_span(course)
    )
    return {
        "tiles": list(tiles),
        "was_head": f"num:{was_head}",
        "base_head": f"num:{base or was_head}",
        "checks": checks_of(proposal, pair[1], after, timezone.now()),
        "pools": [_pool_change(pool, total) for pool in pools],
    }


def _simulated_span(course: Course | None) -> Span | None:
    """Return the least and the most replicas of the proposal in its simulation, or None."""
    counts = course.table["ready"].to_list() if course else []
    return (round(min(counts)), round(max(counts))) if counts else None


def _spans(change: ReplicaChange) -> tuple[Span | None, Span | None]:
    """Return the range of replicas, least to most, before and as proposed."""
    before, after = (
        None if low is None or high is None else (low, high)
        for low, high in zip(change.least, change.most, strict=True)
    )
    return before, after


def _pool_change(change: ReplicaChange, total: ReplicaChange) -> PoolChange:
    """Return the change of a pool as text.

    ``total`` is the change of all pools; where it is None, that plan's replicas are not known. In a
    known plan, a pool that it lacks has 0 replicas. Unless both are known, the change is not known.
    """
    known = [mean is not None for mean in total.mean]
    before, after = (
        span_text(span or (0, 0)) if is_known else NOTHING
        for span, is_known in zip(_spans(change), known, strict=True)
    )
    if not all(known):
        return PoolChange(change.title, before, after, None, NOTHING)
    mean, mean_after = (mean or 0.0 for mean in change.mean)
    more = round(mean_after - mean, 1)
    words = minus(f"{more:+.1f}") if more else "0"
    return PoolChange(change.title, before, after, more, words)


def _runs_like(proposal: Proposal) -> list[Run]:
    """Return runs that could replace the proposal's run; those of its scenario come first.

    Only completed plans and comparisons outside sweeps are offered.
    """
    kinds = (Run.Kind.PLAN, Run.Kind.COMPARE)
    rows = Run.objects.filter(kind__in=kinds, state=Run.State.COMPLETED, sweep=None)
    runs = list(rows.defer("document", "log", "result", "traceback")[:100])
    return sorted(runs, key=lambda run: (run.scenario_id != proposal.scenario_id, -run.pk))[:30]


def _charts(
    proposal: Proposal, entries: Sequence[ProposalEntry], course: Course | None, *, now: bool
) -> dict[str, Figure | None]:
    """Draw replicas and cost of the proposed run and of the run it is compared with.

    Comments on the current revision appear as points. The result is empty without a run.
    """
    run = proposal.run
    if run is None:
        return {}
    base, policy, label = _comparison_base(proposal, now=now)
    courses = [_course(base, policy, label, base=True)] if base is not None else []
    drawn = [each for each in (*courses, course) if each is not None]
    replicas = drawn
    if course and (schedule := _schedule_course(*outcome_of(proposal, run), course)) is not None:
        guarded = "guard" in stored_result(run).labels.get(proposal.policy, "")
        simulated_label = "With the guard, simulated" if guarded else "As simulated"
        replicas = [*drawn[:-1], schedule]
        most, most_scheduled = (max(each.table["ready"].to_list()) for each in (course, schedule))
        if round(most) > most_scheduled:  # else the line would lie behind the schedule
            replicas.append(replace(course, label=simulated_label, added=True))
    comments = [entry for entry in entries if entry.revision == proposal.revision]
    result = stored_result(run)
    different_windows = base is not None and _start(stored_result(base)) != _start(result)
    figures = {
        REPLICAS: course_figure(
            replicas, "ready", "replicas", clock=result.clock, apart=different_windows
        ),
        COST: course_figure(
            drawn, "usd_per_hour", "$ an hour", clock=result.clock, apart=different_windows
        ),
    }
    return {
        f"{name}_figure": _with_comments(its_figure, name, comments)
        for name, its_figure in figures.items()
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
    counts = {
        max(row.period or row.begins, first): count  # type: ignore[type-var]
        for row, count in zip(schedule.rows, schedule.totals, strict=True)
    }
    counts[last] = schedule.totals[-1]
    steps = {"time": list(counts), "ready": list(counts.values())}
    return Course("Schedule", pl.DataFrame(steps, schema_overrides={"time": times.dtype}))


def _start(result: StoredResult) -> datetime | None:
    return result.window.start if result.window else None


def _with_comments(
    figure: Figure | None, chart: str, entries: Sequence[ProposalEntry]
) -> Figure | None:
    """Return the figure with the comments that refer to points of the chart ``chart``.

    None if there is no figure.
    """
    about = [
        entry for entry in entries if entry.anchor.get(CHART) == chart and "value" in entry.anchor
    ]
    if figure is None or not about:
        return figure
    words = [escape(f"{comment.by or comment.rule}: {comment.text[:80]}") for comment in about]
    marks = points(
        [_number_or_time(comment.anchor["time"]) for comment in about],
        [_number_or_time(comment.anchor["value"]) for comment in about],
        "Comments",
        RED,
        symbol="diamond",
        hover="%{text}",
        text=words,
    )
    return {**figure, "data": [*figure["data"], marks]}


def _number_or_time(text: str) -> float | str:
    """Return a position on an axis as a number; a time stays text."""
    try:
        return float(text)
    except ValueError:
        return text


def _comparison_base(proposal: Proposal, *, now: bool) -> tuple[Run | None, str, str]:
    """Return the run and policy that the proposal is compared with, and their label in charts.

    It is the replay of the active plan, else the base run, else the policy that the proposed run
    was compared with. The run is None without any. ``now``: the base is what runs at present.
    """
    label = _baseline_label(proposal)
    label = label or ("Now" if now else "Before the plan")
    if (replay := replay_of(proposal)) is not None:
        return replay, REPLAYED, label
    base = proposal.base_run
    if base is not None and base.state == Run.State.COMPLETED:
        policy = proposal.base.policy if proposal.base and proposal.base.run_id == base.pk else ""
        return base, policy, label
    baseline = compared_policies(proposal, proposal.run)[1][0] if proposal.run else ""
    return (proposal.run, baseline, label) if baseline else (None, "", "")


def _baseline_label(proposal: Proposal) -> str:
    """Return the policy with which a proposal is compared in place of the present fleet.

    It is "" if the present fleet (an active plan or a base run) is known.
    """
    base = proposal.base_run
    stated = base is not None and base.state == Run.State.COMPLETED
    if proposal.run is None or proposal.base or stated or replay_of(proposal) is not None:
        return ""
    (result, _), (policy, _) = compared_policies(proposal, proposal.run)
    return "" if policy in ("", TODAY) else result.labels[policy]


def _course(run: Run, policy: str, label: str, *, base: bool = False) -> Course | None:
    """Return the replicas of a run over time under ``policy``, as a line of a chart.

    None if the run has no tables. ``base`` marks the line that the proposal is compared with.
    """
    if not run_tables(run):
        return None
    course = course_of(run, policy if policy in stored_result(run).policies else "")
    return Course(label, course.table, base) if course else None
