"""Compare two active or past plans, minute by minute of a week.

It uses the data stored with the plans, so it also works after their runs were removed.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import numpy as np

from planner.errors import ScenarioError
from planner.inputs.scenario.address import values_by_address
from planner.inputs.scenario.document import parse
from planner.models import ActivePlan
from planner.outputs.stored_pools import pools_of
from planner.outputs.weekly_pattern import (
    DAYS,
    UNKNOWN,
    WEEK,
    Repeat,
    fold_steps,
    in_utc,
    replicas_without_gaps,
)
from planner.selectors.run_comparison_figures import Setting, compare_settings
from simulation.arrays import IntArray

HOUR = 60  # minutes
WEEK_LONG = timedelta(days=DAYS)
PoolKey = tuple[str, str]  # the deployment's name and region


@dataclass(frozen=True, slots=True)
class PoolBetween:
    """Mean and maximum replicas of a deployment, (before, after), in the hours of both plans."""

    pool: str
    region: str
    mean: tuple[float, float]
    most: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PlansBetween:
    """The difference between two plans, in the hours of a week that both cover.

    ``changed`` is the sum of the absolute changes of replicas by minute, as a share of the
    replica-hours before. It is None if these are zero.
    """

    hours: float  # hours of a week that both plans cover
    replica_hours: tuple[float, float]  # (before, after)
    changed: float | None
    pools: tuple[PoolBetween, ...]
    settings: tuple[Setting, ...]  # settings that differ
    same: int  # number of equal settings
    notes: tuple[str, ...]


def plans_between(old: ActivePlan, new: ActivePlan) -> PlansBetween:
    """Compare two plans: replicas in the minutes of a week that both cover, and settings."""
    before, after = pools_by_minute(old), pools_by_minute(new)
    in_both = _covered_minutes(before) & _covered_minutes(after)
    keys = sorted({*before, *after})
    pools = [(key, _counts(before, key)[in_both], _counts(after, key)[in_both]) for key in keys]
    # Replicas by minute, summed over the week, are replica-hours times 60.
    hours_before = sum(int(old_counts.sum()) for _, old_counts, _ in pools) / HOUR
    hours_after = sum(int(new_counts.sum()) for _, _, new_counts in pools) / HOUR
    changes = [np.abs(new_counts - old_counts) for _, old_counts, new_counts in pools]
    hours_changed = sum(int(change.sum()) for change in changes) / HOUR
    notes: list[str] = []
    if not in_both.any():
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
    return PlansBetween(
        hours=float(in_both.sum()) / HOUR,
        replica_hours=(hours_before, hours_after),
        changed=hours_changed / hours_before if hours_before else None,
        pools=tuple(
            PoolBetween(
                pool=name,
                region=region,
                mean=(float(old_counts.mean()), float(new_counts.mean())),
                most=(int(old_counts.max()), int(new_counts.max())),
            )
            for (name, region), old_counts, new_counts in pools
            if in_both.any()
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
        by_pool[pool.key] = np.tile(counts, WEEK // len(counts))
    return by_pool


def _covered_minutes(pools: dict[PoolKey, IntArray]) -> Any:
    """Return which minutes of the week a plan covers for all of its pools, ``[minute]``."""
    return np.all([counts != UNKNOWN for counts in pools.values()] or [np.zeros(WEEK, bool)], 0)


def _counts(pools: dict[PoolKey, IntArray], key: PoolKey) -> IntArray:
    """Return the replicas of a pool by minute of the week; zeros if the plan does not have it."""
    return pools[key] if key in pools else np.zeros(WEEK, np.int64)


def _settings(
    old: ActivePlan, new: ActivePlan, notes: list[str]
) -> tuple[tuple[Setting, ...], int]:
    """Return the settings that differ and the number of equal ones, or ((), 0) and a note."""
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
