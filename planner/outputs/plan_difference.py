"""Compare the replicas of two plans, minute by minute.

Plans are compared in a table of replicas by pool and minute: a new plan with the active plan at the
same times, and two stored plans over a week. Stored plans are compared from the data stored with
them, so it also works after their runs were removed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, cast

import numpy as np

from planner.domain.reports.schedule import SchedulePool
from planner.errors import ScenarioError
from planner.inputs.scenario.address import values_by_address
from planner.inputs.scenario.document import parse
from planner.models import ActivePlan
from planner.outputs.pools import Pool
from planner.outputs.stored_pools import StoredPool, pools_of
from planner.outputs.weekly_pattern import (
    DAYS_PER_WEEK,
    MINUTES_PER_DAY,
    MINUTES_PER_WEEK,
    UNKNOWN,
    Repeat,
    Step,
    fold_steps,
    in_utc,
    minute_of,
    replicas_by_minute,
    replicas_without_gaps,
)
from planner.selectors.run_comparison_figures import Setting, compare_settings
from simulation.arrays import IntArray

MINUTES_PER_HOUR = 60
WEEK_LONG = timedelta(days=DAYS_PER_WEEK)
PoolKey = tuple[str, str]  # the deployment's name and region
Counts = Mapping[PoolKey, IntArray]  # replicas by minute of each pool of a plan


@dataclass(frozen=True, slots=True)
class ReplicaChange:
    """Replicas of a pool over time as (before, after); None if a plan lacks the pool."""

    pool: str
    region: str
    title: str  # model, region and role
    mean: tuple[float | None, float | None]
    most: tuple[int | None, int | None]
    least: tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class ReplicaTable:
    """Replicas of two plans by pool, in the minutes that both plans cover.

    A plan has 0 replicas of a pool that only the other plan has. Pairs are (before, after).
    ``changed`` is the changed share of the replica-hours before; None if these are zero. More
    replicas in one minute do not offset fewer in another.
    """

    pools: tuple[PoolKey, ...]
    minutes: IntArray  # covered by both plans, as positions in the arrays that are compared
    before: IntArray  # [pool, minute]
    after: IntArray  # [pool, minute]
    hours: float  # that both plans cover
    replica_hours: tuple[float, float]
    changed: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """The largest change of a pool's replicas, and when it happens."""

    pool: str
    region: str
    begins: datetime
    was: int
    will_be: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference of a plan from the active plan, over the minutes that both cover.

    A minute is compared with the same time in the active plan. After the end of the active plan, it
    is compared with the same time of its last week, or else of its last day.
    """

    hours: float  # compared hours
    left_out: float  # hours of the plan that the active plan does not cover
    replica_hours: float  # of the plan, in the compared hours
    replica_hours_was: float
    replicas_changed: float  # sum of absolute changes over the sum of active replicas
    largest: Change | None
    usd: float | None  # of the plan, in the compared hours; None: a price is not known
    usd_was: float | None
    usd_changed: float | None  # share of ``usd_was``; negative: the plan is cheaper

    @property
    def sentence(self) -> str:
        """Return the difference in a sentence."""
        if not self.hours:
            return "No hour of it can be compared with the active plan."
        facts = [f"{self.replicas_changed:.1%} of replica-hours differ"]
        if self.usd_changed is not None and self.usd is not None:
            direction = "more" if self.usd_changed >= 0 else "less"
            facts.append(f"it costs {abs(self.usd_changed):.1%} {direction} (${self.usd:,.2f})")
        if self.largest is not None:
            change = self.largest
            facts.append(
                f"most at {change.begins:%a %Y-%m-%d %H:%M}, {change.pool} in {change.region}: "
                f"{change.was:,} to {change.will_be:,}"
            )
        sentence = f"Over {self.hours:,.4g} hours {', '.join(facts)}"
        if self.left_out:
            sentence += f"; {self.left_out:,.4g} hours had nothing to compare with"
        return f"{sentence}."


@dataclass(frozen=True, slots=True)
class WeekDifference:
    """The difference between two plans, in the hours of a week that both cover."""

    hours: float
    replica_hours: tuple[float, float]  # (before, after)
    changed: float | None  # as in ``ReplicaTable``
    pools: tuple[ReplicaChange, ...]
    settings: tuple[Setting, ...]  # settings that differ
    same: int  # number of equal settings
    notes: tuple[str, ...]


def replica_table(before: Counts, after: Counts) -> ReplicaTable:
    """Return the replicas of two plans in the minutes that both cover, and their replica-hours.

    A plan has an array ``[minute]`` for each pool, UNKNOWN where it does not cover the minute.
    """
    pools = tuple(sorted({*before, *after}))
    minutes = np.empty(0, np.int64)  # a plan without pools covers no minute
    if before and after:
        is_covered = [counts != UNKNOWN for counts in (*before.values(), *after.values())]
        minutes = np.flatnonzero(np.all(is_covered, axis=0))
    counts_before = _counts_of(before, pools, minutes)
    counts_after = _counts_of(after, pools, minutes)
    hours_before = float(counts_before.sum()) / MINUTES_PER_HOUR
    hours_after = float(counts_after.sum()) / MINUTES_PER_HOUR
    changed_hours = float(np.abs(counts_after - counts_before).sum()) / MINUTES_PER_HOUR
    return ReplicaTable(
        pools,
        minutes,
        counts_before,
        counts_after,
        hours=len(minutes) / MINUTES_PER_HOUR,
        replica_hours=(hours_before, hours_after),
        changed=changed_hours / hours_before if hours_before else None,
    )


def _counts_of(plan: Counts, pools: Sequence[PoolKey], minutes: IntArray) -> IntArray:
    """Return the replicas of a plan in ``minutes``, ``[pool, minute]``; 0 of a pool it lacks."""
    counts = np.zeros((len(pools), len(minutes)), np.int64)
    for row, pool in enumerate(pools):
        if pool in plan:
            counts[row] = plan[pool][minutes]
    return counts


def pool_title(pool: Pool | StoredPool) -> str:
    """Return the model and the region of a pool, and its role if it is prefill or decode."""
    return SchedulePool(pool.model, pool.region, pool.arrangement or "", pool.role).name


def replica_change(
    key: PoolKey, title: str, before: IntArray | None, after: IntArray | None
) -> ReplicaChange:
    """Return the change of a pool's replicas, each ``[minute]``; None: the plan lacks the pool."""
    old, new = _mean_most_least(before), _mean_most_least(after)
    pool, region = key
    return ReplicaChange(
        pool, region, title, (old.mean, new.mean), (old.most, new.most), (old.least, new.least)
    )


class _MeanMostLeast(NamedTuple):
    mean: float | None = None
    most: int | None = None
    least: int | None = None


def _mean_most_least(counts: IntArray | None) -> _MeanMostLeast:
    """Return mean, maximum and minimum of replicas ``[minute]``; None each if none is known."""
    known = counts[counts != UNKNOWN] if counts is not None else np.empty(0)
    if not known.size:
        return _MeanMostLeast()
    return _MeanMostLeast(float(known.mean()), int(known.max()), int(known.min()))


def minutes_from_start(plan: Mapping[PoolKey, Sequence[Step]]) -> dict[PoolKey, IntArray]:
    """Return replicas by pool and minute, from the first minute of the plan to its last one."""
    steps = [step for pool_steps in plan.values() for step in pool_steps]
    if not steps:
        return {}
    first = minute_of(min(step.begins for step in steps))
    minutes = max(1, minute_of(max(step.ends for step in steps)) - first)
    return {key: replicas_by_minute(steps, minutes, first) for key, steps in plan.items()}


def plan_difference(
    plan: Mapping[PoolKey, Sequence[Step]],
    active: Mapping[PoolKey, Sequence[Step]],
    usd_per_hour: Mapping[PoolKey, float],
) -> Difference:
    """Return the difference of ``plan`` from the plan ``active``; both are steps in UTC by pool.

    ``usd_per_hour`` are prices of a replica. They apply to both plans, so that only replicas make a
    difference.
    """
    # Replicas of both plans by pool and minute of ``plan``.
    begins, active_begins = _begin_of(plan), _begin_of(active)
    after = minutes_from_start(plan)
    minutes = len(next(iter(after.values())))  # the same for each pool
    # Minutes of the plan, counted from the first one of the active plan.
    active_minutes = np.arange(minutes) + minute_of(begins) - minute_of(active_begins)
    before = {
        key: _at_same_time(counts, active_minutes)
        for key, counts in minutes_from_start(active).items()
    }
    table = replica_table(before, after)
    # Sums over the minutes that both cover.
    replica_hours_was, replica_hours = table.replica_hours
    usd_was = _cost_usd(table.pools, table.before, usd_per_hour)
    usd = _cost_usd(table.pools, table.after, usd_per_hour)
    replicas_changed = table.changed
    if replicas_changed is None:  # the active plan has no replicas, so all of the plan are new
        replicas_changed = 1.0 if replica_hours > 0 else 0.0
    return Difference(
        hours=table.hours,
        left_out=minutes / MINUTES_PER_HOUR - table.hours,
        replica_hours=replica_hours,
        replica_hours_was=replica_hours_was,
        replicas_changed=replicas_changed,
        largest=_largest_change(table, begins),
        usd=usd,
        usd_was=usd_was,
        usd_changed=None if usd is None or not usd_was else usd / usd_was - 1,
    )


def _begin_of(plan: Mapping[PoolKey, Sequence[Step]]) -> datetime:
    """Return the earliest begin of a step of a plan."""
    return min(step.begins for steps in plan.values() for step in steps)


def _at_same_time(counts: IntArray, minutes: IntArray) -> IntArray:
    """Return the replicas of a pool of the active plan at ``minutes``; UNKNOWN if not covered.

    ``counts`` are its replicas by minute. ``minutes`` are positions there, and may lie outside. One
    after the end counts as the same time of the last week, or else as that of the last day.
    """
    replicas = np.full(len(minutes), UNKNOWN, np.int64)
    for cycle in (MINUTES_PER_WEEK, MINUTES_PER_DAY):
        # A minute after the end of ``counts`` is moved back by whole cycles until it is inside.
        cycles_late = np.maximum(0, (minutes - len(counts)) // cycle + 1)
        same_time = minutes - cycles_late * cycle
        found = (replicas == UNKNOWN) & (same_time >= 0)
        replicas[found] = counts[same_time[found]]
    return replicas


def _cost_usd(
    pools: Sequence[PoolKey], replicas: IntArray, usd_per_hour: Mapping[PoolKey, float]
) -> float | None:
    """Return the cost of ``replicas``, ``[pool, minute]``; None if a used pool has no price."""
    total = 0.0
    for pool, replica_minutes in zip(pools, replicas.sum(axis=1).tolist(), strict=True):
        if replica_minutes and pool not in usd_per_hour:
            return None
        total += replica_minutes / MINUTES_PER_HOUR * usd_per_hour.get(pool, 0.0)
    return total


def _largest_change(table: ReplicaTable, begins: datetime) -> Change | None:
    """Return the largest change of a pool in one minute; None if no replicas change.

    ``begins`` is the time of minute 0 of the table.
    """
    changes = np.abs(table.after - table.before)
    if not changes.any():
        return None
    row, column = np.unravel_index(int(np.argmax(changes)), changes.shape)
    pool, region = table.pools[int(row)]
    time = begins + int(table.minutes[column]) * timedelta(minutes=1)
    return Change(pool, region, time, int(table.before[row, column]), int(table.after[row, column]))


def week_difference(old: ActivePlan, new: ActivePlan) -> WeekDifference:
    """Compare two plans: replicas in the minutes of a week that both cover, and settings."""
    table = replica_table(pools_by_minute(old), pools_by_minute(new))
    titles = {pool.key: pool_title(pool) for plan in (old, new) for pool in pools_of(plan)}
    notes: list[str] = []
    if not table.hours:
        notes.append("They cover different hours of a week, so replicas are not compared.")
    if old.repeat != new.repeat:
        notes.append(f"Repeat: {old.repeat} before, {new.repeat} after.")
    notes += [
        f"Plan {plan.pk} covers more than a week. If times share a minute of the week, the largest "
        "count is compared."
        for plan in (old, new)
        if plan.ends - plan.begins > WEEK_LONG
    ]
    settings, same = _settings(old, new, notes)
    return WeekDifference(
        hours=table.hours,
        replica_hours=table.replica_hours,
        changed=table.changed,
        pools=tuple(
            replica_change(key, titles[key], before, after)
            for key, before, after in zip(table.pools, table.before, table.after, strict=True)
            if table.hours
        ),
        settings=settings,
        same=same,
        notes=tuple(notes),
    )


def pools_by_minute(plan: ActivePlan) -> dict[PoolKey, IntArray]:
    """Return the replicas of each pool by minute of the week in UTC, from Monday on.

    Minutes outside the dates of a dated plan are UNKNOWN.
    """
    by_pool = {}
    for pool in pools_of(plan):
        steps = in_utc(pool.steps, plan.zone)
        if plan.repeat == "once":
            counts = fold_steps(steps, "weekly")
        else:
            counts = replicas_without_gaps(steps, cast(Repeat, plan.repeat))
        # Repeat a daily pattern over the week, so that all plans have the same minutes.
        by_pool[pool.key] = np.tile(counts, MINUTES_PER_WEEK // len(counts))
    return by_pool


def _settings(
    old: ActivePlan, new: ActivePlan, notes: list[str]
) -> tuple[tuple[Setting, ...], int]:
    """Return (settings that differ between the runs of two plans, number of equal settings).

    Returns ((), 0) if the settings of a run are not known, and appends the reason to ``notes``.
    """
    by_run = []
    for plan in (old, new):
        if plan.run is None:
            notes.append(f"Run {plan.number} was removed: its settings are not known.")
            continue
        try:
            by_run.append(values_by_address(parse(plan.run.document, plan.scenario)))
        except ScenarioError:
            notes.append(f"The settings of run {plan.number} are of another release.")
    if len(by_run) < 2:
        return (), 0
    return compare_settings(by_run)
