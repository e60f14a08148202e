"""Compare a plan with the active plan, hour by hour and pool by pool.

A schedule's rule decides from the difference whether a person has to review the plan.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from planner.domain.formats import signed_percent
from planner.outputs.weekly_pattern import Step
from simulation.arrays import FloatArray

HOUR, MIN_SPACING = timedelta(hours=1), timedelta(minutes=5)
# An hour is compared with the same time, or else that of a week before, or else of a day before.
CYCLES = (timedelta(0), timedelta(days=7), timedelta(days=1))
PoolKey = tuple[str, str]  # the deployment's name and region


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """The schedule of one deployment."""

    key: PoolKey
    steps: tuple[Step, ...]
    usd_per_hour: float | None  # per replica; None: not known


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
    """The difference of a plan from the active plan, over the hours that both cover.

    An hour is compared with the same time in the active plan. If that is not covered, it is
    compared with the same time a week before, or else a day before.
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
        parts = [f"{self.replicas_changed:.1%} of replica-hours differ"]
        if self.usd_changed is not None and self.usd is not None:
            direction = "more" if self.usd_changed >= 0 else "less"
            parts.append(f"it costs {abs(self.usd_changed):.1%} {direction} (${self.usd:,.2f})")
        if self.largest is not None:
            change = self.largest
            parts.append(
                f"most at {change.begins:%a %Y-%m-%d %H:%M}, {change.pool} in {change.region}: "
                f"{change.was:,} to {change.will_be:,}"
            )
        left_out_words = (
            f"; {self.left_out:,.4g} hours had nothing to compare with" if self.left_out else ""
        )
        return f"Over {self.hours:,.4g} hours {', '.join(parts)}{left_out_words}."


def plan_difference(plan: Sequence[PoolPlan], active: Sequence[PoolPlan]) -> Difference:
    """Return the difference of ``plan`` from the active plan at times for which both are known."""
    times, step = _comparison_times(plan)
    before = {pool.key: pool for pool in active}
    after = {pool.key: pool for pool in plan}
    keys = list(dict.fromkeys((*after, *before)))
    # The active plan repeats after its end, but the new plan is compared only until its own end.
    old = np.stack([_replicas_at(before.get(key), active, times) for key in keys])
    new = np.stack([_replicas_at(after.get(key), plan, times, cycles=CYCLES[:1]) for key in keys])
    comparable = ~np.isnan(old).any(axis=0) & ~np.isnan(new).any(axis=0)
    compared_times = [times[i] for i in np.flatnonzero(comparable)]
    old = old[:, comparable]
    new = new[:, comparable]
    hours_per_step = step / HOUR
    old_usd, usd = (
        _cost_usd(counts * hours_per_step, keys, before, after) for counts in (old, new)
    )
    changed = float(np.abs(new - old).sum()) * hours_per_step
    total = float(old.sum()) * hours_per_step
    return Difference(
        hours=len(compared_times) * hours_per_step,
        left_out=(len(times) - len(compared_times)) * hours_per_step,
        replica_hours=float(new.sum()) * hours_per_step,
        replica_hours_was=total,
        replicas_changed=changed / total if total else float(changed > 0),
        largest=_largest_change(old, new, keys, compared_times),
        usd=usd,
        usd_was=old_usd,
        usd_changed=None if usd is None or not old_usd else usd / old_usd - 1,
    )


def _comparison_times(plan: Sequence[PoolPlan]) -> tuple[list[datetime], timedelta]:
    """Return equally spaced times over the plan, and their spacing.

    The spacing is the shortest step of the plan, but at least 5 minutes and at most an hour.
    """
    steps = [step for pool in plan for step in pool.steps]
    begins, ends = min(step.begins for step in steps), max(step.ends for step in steps)
    shortest = min(step.ends - step.begins for step in steps if step.ends > step.begins)
    spacing = max(MIN_SPACING, min(HOUR, shortest))
    count = max(1, int((ends - begins) / spacing))
    return [begins + n * spacing for n in range(count)], spacing


def _replicas_at(
    pool: PoolPlan | None,
    pools: Sequence[PoolPlan],
    times: Sequence[datetime],
    cycles: Sequence[timedelta] = CYCLES,
) -> FloatArray:
    """Return the replicas of ``pool`` at each time; 0 if it is None: the plan lacks the pool.

    ``pools`` are all pools of the plan. For a time after its end, they are the replicas a number of
    whole cycles earlier, by the first of ``cycles`` that reaches the plan. NaN: no cycle does.
    """
    # A pool that the plan lacks has no steps, so the first pool shows which times are covered.
    steps = (pool or pools[0]).steps
    replicas = np.full(len(times), np.nan)
    if not steps:
        return replicas
    moments = np.array(times, "datetime64[us]")
    begins, ends = (
        np.array([getattr(step, edge) for step in steps], "datetime64[us]")
        for edge in ("begins", "ends")
    )
    counts = np.array([step.replicas if pool else 0 for step in steps], float)
    for cycle in reversed(cycles):  # the first one that covers a time applies
        # The whole cycles by which a time lies after the end of the plan.
        late = np.maximum((moments - ends[-1]) // np.timedelta64(cycle) + 1, 0) if cycle else 0
        same_time_in_plan = moments - late * np.timedelta64(cycle)
        index = np.searchsorted(begins, same_time_in_plan, side="right") - 1
        covered = (index >= 0) & (same_time_in_plan < ends[index])
        replicas[covered] = counts[index[covered]]
    return replicas


def _cost_usd(
    counts: FloatArray,
    keys: Sequence[PoolKey],
    before: Mapping[PoolKey, PoolPlan],
    after: Mapping[PoolKey, PoolPlan],
) -> float | None:
    """Return the cost (USD) of ``counts [pool, time]``, replica-hours; None if a price is unknown.

    ``keys`` are the pools. The prices are those of the plan ``after`` for both plans, so that only
    replicas make a difference. A pool that only ``before`` has keeps its price there.
    """
    total = 0.0
    for row, key in zip(counts, keys, strict=True):
        prices = [pool.usd_per_hour for plan in (after, before) if (pool := plan.get(key))]
        price = next((price for price in prices if price is not None), None)
        if price is None and row.any():
            return None
        total += float(row.sum()) * (price or 0.0)
    return total


def _largest_change(
    old: FloatArray, new: FloatArray, keys: Sequence[PoolKey], times: Sequence[datetime]
) -> Change | None:
    """Return the largest change from ``old`` to ``new``, replicas ``[pool, time]``; None if none.

    ``keys`` are the pools.
    """
    if not old.size or not np.any(new != old):
        return None
    row, hour = np.unravel_index(int(np.argmax(np.abs(new - old))), old.shape)
    name, region = keys[int(row)]
    counts = (int(array[row, hour]) for array in (old, new))
    return Change(name, region, times[int(hour)], *counts)


@dataclass(frozen=True, slots=True)
class ActivationRule:
    """The largest differences at which a plan becomes active without a review.

    If one of them is None, every plan needs a review.
    """

    replicas: float | None = None  # share of replica-hours
    cost: float | None = None  # share of the cost

    def reason_for_review(self, difference: Difference | None, missed: Sequence[str]) -> str:
        """Return why a person must review the plan; "" if no review is needed.

        ``difference`` is None if no plan is active. ``missed`` are the tiers that missed their SLO
        target in the simulation.
        """
        if self.replicas is None or self.cost is None:
            return "Everything is to be reviewed: no limits are set."
        if missed:
            return f"Its replay missed the target for {', '.join(missed)}."
        if difference is None:
            return "No plan is active to compare it with."
        if not difference.hours or difference.left_out > difference.hours:
            return "The active plan covers too few of these hours to compare them."
        if difference.replicas_changed > self.replicas:
            return (
                f"{difference.replicas_changed:.1%} of replica-hours differ, above the limit of "
                f"{self.replicas:.1%}."
            )
        if difference.usd_changed is None:
            return "The price of its replicas is unknown."
        if abs(difference.usd_changed) > self.cost:
            return (
                f"Its cost differs by {signed_percent(difference.usd_changed)}, beyond the limit "
                f"of {self.cost:.1%}."
            )
        return ""
