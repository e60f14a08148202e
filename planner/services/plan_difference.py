"""Compare a plan with the active plan, hour by hour and pool by pool.

``reason_for_review`` decides by the difference whether a person has to review a scheduled plan.
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


def _replicas_at(
    pool: PoolPlan | None,
    pools: Sequence[PoolPlan],
    times: Sequence[datetime],
    cycles: Sequence[timedelta] = CYCLES,
) -> FloatArray:
    """Return the replicas of ``pool`` that its plan has at each time, ``[time]``.

    ``pools`` are all pools of the plan; ``pool`` None is one that the plan lacks, with 0 replicas.
    A time after the plan's end counts as the same time earlier in the plan, a whole number of
    cycles before. ``cycles`` are their lengths; the first that leads into the plan applies. NaN if
    the plan does not cover the time.
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
    for cycle in reversed(cycles):  # reversed, so that the first cycles overwrite the later ones
        cycles_late = 0  # cycles by which a time lies after the end of the plan
        if cycle:
            cycles_late = np.maximum((moments - ends[-1]) // np.timedelta64(cycle) + 1, 0)
        same_time_in_plan = moments - cycles_late * np.timedelta64(cycle)
        index = np.searchsorted(begins, same_time_in_plan, side="right") - 1
        covered = (index >= 0) & (same_time_in_plan < ends[index])
        replicas[covered] = counts[index[covered]]
    return replicas


def _cost_usd(
    replica_hours: FloatArray,
    keys: Sequence[PoolKey],
    before: Mapping[PoolKey, PoolPlan],
    after: Mapping[PoolKey, PoolPlan],
) -> float | None:
    """Return the cost (USD) of the pools ``keys``; None if one with replicas has no known price.

    ``replica_hours`` is ``[pool, time]``. Prices are those of the plan ``after`` also for the plan
    ``before``, so that only replicas make a difference; pools that ``after`` lacks have their old
    price.
    """
    total = 0.0
    for row, key in zip(replica_hours, keys, strict=True):
        prices = [pool.usd_per_hour for plan in (after, before) if (pool := plan.get(key))]
        price = next((price for price in prices if price is not None), None)
        if price is None and row.any():
            return None
        total += float(row.sum()) * (price or 0.0)
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
