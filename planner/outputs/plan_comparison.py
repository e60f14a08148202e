"""Compare two active or past plans, minute by minute of a week.

It uses the data stored with the plans, so it also works after their runs were removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np

from planner.errors import ScenarioError
from planner.inputs.scenario.address import values_by_address
from planner.inputs.scenario.document import parse
from planner.models import ActivePlan
from planner.outputs.active_plan_metrics import steps_of
from planner.outputs.weekly_pattern import DAYS, UNKNOWN, WEEK, folded, in_utc
from planner.selectors.run_comparison_figures import Setting
from simulation.arrays import IntArray

HOUR = 60  # minutes
WEEK_LONG = timedelta(days=DAYS)
PoolKey = tuple[str, str]  # the deployment's name and region


@dataclass(frozen=True, slots=True)
class PoolBetween:
    """Mean and largest number of replicas of a deployment, (before, after).

    Both cover the compared hours.
    """

    pool: str
    region: str
    mean: tuple[float, float]
    most: tuple[int, int]


@dataclass(frozen=True, slots=True)
class PlansBetween:
    """The difference between two plans.

    ``hours`` of a week are covered by both. ``replica_hours`` in them are (before, after).
    ``changed`` is the sum of absolute changes over the sum before, a share.
    """

    hours: float
    replica_hours: tuple[float, float]
    changed: float | None
    pools: tuple[PoolBetween, ...]
    settings: tuple[Setting, ...]
    same: int  # number of equal settings
    notes: tuple[str, ...]


def plans_between(old: ActivePlan, new: ActivePlan) -> PlansBetween:
    """Compare the replicas by minute of the week in UTC, and the settings of both runs."""
    before, after = pools_by_minute(old), pools_by_minute(new)
    both = _known_minutes(before) & _known_minutes(after)
    keys = sorted({*before, *after})
    pools = [(key, _counts(before, key)[both], _counts(after, key)[both]) for key in keys]
    was = float(sum(a.sum() for _, a, _ in pools)) / HOUR
    will = float(sum(b.sum() for _, _, b in pools)) / HOUR
    moved = float(sum(np.abs(b - a).sum() for _, a, b in pools)) / HOUR
    notes: list[str] = []
    if not both.any():
        notes.append("They say nothing of the same hours of a week: replicas are not compared.")
    notes += [
        f"Plan {plan.pk} covers more than a week: of times that share a minute of the week the "
        "most counts."
        for plan in (old, new)
        if plan.ends - plan.begins > WEEK_LONG
    ]
    settings, same = _settings(old, new, notes)
    return PlansBetween(
        hours=float(both.sum()) / HOUR,
        replica_hours=(was, will),
        changed=moved / was if was else None,
        pools=tuple(
            PoolBetween(
                pool=name,
                region=region,
                mean=(float(a.mean()), float(b.mean())),
                most=(int(a.max()), int(b.max())),
            )
            for (name, region), a, b in pools
            if both.any()
        ),
        settings=settings,
        same=same,
        notes=tuple(notes),
    )


def pools_by_minute(plan: ActivePlan) -> dict[PoolKey, IntArray]:
    """Return replicas by pool and minute of the week, from Monday on, in UTC.

    Minutes that the plan does not cover are UNKNOWN.
    """
    by_pool = {}
    for pool in plan.pools:
        steps = in_utc(steps_of(pool), plan.zone)
        daily = plan.repeat == "daily"
        counts = folded(steps, "daily" if daily else "weekly")
        # Repeat a daily pattern over the week, so that all plans have the same minutes.
        by_pool[pool["name"], pool["region"]] = np.tile(counts, DAYS) if daily else counts
    return by_pool


def _known_minutes(pools: dict[PoolKey, IntArray]) -> Any:
    """Return which minutes a plan covers for all of its pools, ``[minute]``."""
    return np.all([counts != UNKNOWN for counts in pools.values()] or [np.zeros(WEEK, bool)], 0)


def _counts(pools: dict[PoolKey, IntArray], key: PoolKey) -> IntArray:
    """Return the replicas of a pool by minute; zero if the plan does not have the pool."""
    return pools[key] if key in pools else np.zeros(WEEK, np.int64)


def _settings(
    old: ActivePlan, new: ActivePlan, notes: list[str]
) -> tuple[tuple[Setting, ...], int]:
    """Return the settings that differ between both scenarios, and the number of equal ones.

    Runs keep their scenario as it was. Settings that cannot be read are reported in ``notes``.
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
    before, after = by_run
    keys = dict.fromkeys([*before, *after])
    rows = [Setting(key, (before.get(key), after.get(key))) for key in keys]
    different = tuple(row for row in rows if row.values[0] != row.values[1])
    return different, len(rows) - len(different)
