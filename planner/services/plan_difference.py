"""Compare a plan with the active plan, hour by hour and pool by pool.

``reason_for_review`` decides by the difference whether a person has to review a scheduled plan.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
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
    steps: tuple[Step, ...]  # replicas over time
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
    """Return the difference of ``plan`` from the plan ``active``, at the times that both cover.

    Each is a list of its pools. Class Difference says which times are compared.
    """
    times, spacing = _comparison_times(plan)
    hours_per_time = spacing / HOUR
    before = {pool.key: pool for pool in active}
    after = {pool.key: pool for pool in plan}
    keys = list(dict.fromkeys((*after, *before)))
    # Replicas by pool and time, [pool, time]. NaN: the plan does not cover the time. The active
    # plan repeats after its end, but the new plan is compared only until its own end.
    old = np.array([_replicas(before.get(key), active, times, CYCLES) for key in keys])
    new = np.array([_replicas(after.get(key), plan, times, CYCLES[:1]) for key in keys])
    comparable = ~np.isnan(old).any(axis=0) & ~np.isnan(new).any(axis=0)
    compared_times = [times[i] for i in np.flatnonzero(comparable)]
    old = old[:, comparable]
    new = new[:, comparable]
    # Both plans at the new plan's prices, so that only replicas make a difference. Pools that the
    # new plan lacks have their old price.
    prices = {
        pool.key: pool.usd_per_hour for pool in (*active, *plan) if pool.usd_per_hour is not None
    }
    old_usd, usd = (
        _cost_usd(replicas.sum(axis=1) * hours_per_time, [prices.get(key) for key in keys])
        for replicas in (old, new)
    )
    changed = float(np.abs(new - old).sum()) * hours_per_time
    total = float(old.sum()) * hours_per_time
    return Difference(
        hours=len(compared_times) * hours_per_time,
        left_out=(len(times) - len(compared_times)) * hours_per_time,
        replica_hours=float(new.sum()) * hours_per_time,
        replica_hours_was=total,
        replicas_changed=changed / total if total else float(changed > 0),
        largest=_largest_change(old, new, keys, compared_times),
        usd=usd,
        usd_was=old_usd,
        usd_changed=None if usd is None or not old_usd else usd / old_usd - 1,
    )


def _comparison_times(plan: Sequence[PoolPlan]) -> tuple[list[datetime], timedelta]:
    """Return equally spaced times from the start to the end of the plan, and their spacing.

    The spacing is the length of the plan's shortest step, but 5 minutes to an hour.
    """
    steps = [step for pool in plan for step in pool.steps]
    begins = min(step.begins for step in steps)
    ends = max(step.ends for step in steps)
    shortest = min(step.ends - step.begins for step in steps if step.ends > step.begins)
    spacing = max(MIN_SPACING, min(HOUR, shortest))
    count = max(1, int((ends - begins) / spacing))
    return [begins + n * spacing for n in range(count)], spacing


def _replicas(
    pool: PoolPlan | None,
    pools: Sequence[PoolPlan],
    times: Sequence[datetime],
    cycles: Sequence[timedelta],
) -> list[float]:
    """Return the replicas that a plan has of ``pool`` at each time; NaN if it does not cover it.

    ``pools`` are all pools of the plan. It has 0 replicas of the pool None at times that it covers.
    """
    steps = (pool or pools[0]).steps  # every pool covers the same times
    replicas = []
    for time in times:
        count = _replicas_at(steps, time, cycles)
        if count is None:
            replicas.append(math.nan)
        else:
            replicas.append(float(count) if pool else 0.0)
    return replicas


def _replicas_at(steps: Sequence[Step], time: datetime, cycles: Sequence[timedelta]) -> int | None:
    """Return the replicas of ``steps`` at a time; None if they do not cover it.

    A time after the last step counts as the same time earlier, a whole number of cycles before.
    ``cycles`` are their lengths; the first that leads into a step applies.
    """
    for cycle in cycles:
        same_time = time
        if cycle and time >= steps[-1].ends:
            cycles_late = (time - steps[-1].ends) // cycle + 1
            same_time = time - cycles_late * cycle
        index = bisect_right(steps, same_time, key=lambda step: step.begins) - 1
        if index >= 0 and same_time < steps[index].ends:
            return steps[index].replicas
    return None


def _cost_usd(replica_hours: FloatArray, prices: Sequence[float | None]) -> float | None:
    """Return the cost (USD) of pools; None if one with replicas has no known price.

    ``replica_hours`` is ``[pool]``. ``prices`` are in USD per replica and hour.
    """
    total = 0.0
    for hours, usd_per_hour in zip(replica_hours.tolist(), prices, strict=True):
        if hours and usd_per_hour is None:
            return None
        total += hours * (usd_per_hour or 0.0)
    return total


def _largest_change(
    old: FloatArray, new: FloatArray, keys: Sequence[PoolKey], times: Sequence[datetime]
) -> Change | None:
    """Return the largest change of replicas from ``old`` to ``new``; None if they are equal.

    Both are ``[pool, time]``, for the pools ``keys`` and the ``times``.
    """
    if not old.size or not np.any(new != old):
        return None
    row, column = np.unravel_index(int(np.argmax(np.abs(new - old))), old.shape)
    name, region = keys[int(row)]
    was, will_be = int(old[row, column]), int(new[row, column])
    return Change(name, region, times[int(column)], was, will_be)


def reason_for_review(
    difference: Difference | None,
    missed_tiers: Sequence[str],
    *,
    max_replicas: float | None,
    max_cost: float | None,
) -> str:
    """Return why a person must review a plan; "" if no review is needed.

    ``difference`` is that from the active plan; None if there is none. ``missed_tiers`` missed
    their SLO target in the simulation. ``max_replicas`` and ``max_cost`` are the largest changed
    shares of replica-hours and of cost without a review; None: every plan needs one.
    """
    if max_replicas is None or max_cost is None:
        return "Everything is to be reviewed: no limits are set."
    if missed_tiers:
        return f"Its replay missed the target for {', '.join(missed_tiers)}."
    if difference is None:
        return "No plan is active to compare it with."
    if not difference.hours or difference.left_out > difference.hours:
        return "The active plan covers too few of these hours to compare them."
    if difference.replicas_changed > max_replicas:
        return (
            f"{difference.replicas_changed:.1%} of replica-hours differ, above the limit of "
            f"{max_replicas:.1%}."
        )
    if difference.usd_changed is None:
        return "The price of its replicas is unknown."
    if abs(difference.usd_changed) > max_cost:
        return (
            f"Its cost differs by {signed_percent(difference.usd_changed)}, beyond the limit "
            f"of {max_cost:.1%}."
        )
    return ""
