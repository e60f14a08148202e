"""How a plan differs from the one in force, hour by hour of each pool, and what the rule of a
schedule makes of it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from planner.exports.patterns import Step
from simulation.arrays import FloatArray

HOUR, FINEST = timedelta(hours=1), timedelta(minutes=5)
CYCLES = (timedelta(0), timedelta(days=7), timedelta(days=1))  # where to look for a like hour
PoolKey = tuple[str, str]  # the deployment's name and region


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """One deployment's timetable, and what an hour of a replica costs; None: not known."""

    key: PoolKey
    steps: tuple[Step, ...]
    usd_per_hour: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """The largest at any time of any pool."""

    pool: str
    region: str
    begins: datetime
    was: int
    will_be: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Of a plan from the one in force, over the hours of which both say something: the same time,
    else that of the week before it, else of the day before it."""

    hours: float  # that were compared
    left_out: float  # of the plan, of which the one in force says nothing
    replica_hours: float  # of the plan, in the hours compared
    replica_hours_was: float
    replicas_changed: float  # sum of |changes| over the sum of what was, a share
    largest: Change | None
    usd: float | None  # of the plan, in the hours compared; None where a price is not known
    usd_was: float | None
    usd_changed: float | None  # a share, negative where it is cheaper

    @property
    def sentence(self) -> str:
        if not self.hours:
            return "No hour of it can be compared with the plan in force."
        parts = [f"{self.replicas_changed:.1%} of replica-hours differ"]
        if self.usd_changed is not None and self.usd is not None:
            more = "more" if self.usd_changed >= 0 else "less"
            parts.append(f"it costs {abs(self.usd_changed):.1%} {more} (${self.usd:,.2f})")
        if self.largest is not None:
            change = self.largest
            parts.append(
                f"most at {change.begins:%a %Y-%m-%d %H:%M}, {change.pool} in {change.region}: "
                f"{change.was:,} to {change.will_be:,}"
            )
        left = f"; {self.left_out:,.4g} hours had nothing to compare with" if self.left_out else ""
        return f"Over {self.hours:,.4g} hours {', '.join(parts)}{left}."


def differs(plan: Sequence[PoolPlan], in_force: Sequence[PoolPlan]) -> Difference:
    """``plan`` against what is in force, both on one clock."""
    times, step = _times(plan)
    before = {pool.key: pool for pool in in_force}
    after = {pool.key: pool for pool in plan}
    keys = list(dict.fromkeys((*after, *before)))
    was = np.stack([_like(before.get(key), in_force, times) for key in keys])
    will = np.stack([_like(after.get(key), plan, times, cycles=CYCLES[:1]) for key in keys])
    both = ~np.isnan(was).any(axis=0) & ~np.isnan(will).any(axis=0)
    when = [times[i] for i in np.flatnonzero(both)]
    was, will, each = was[:, both], will[:, both], step / HOUR
    usd_was, usd = (_usd(counts * each, keys, before, after) for counts in (was, will))
    changed, total = float(np.abs(will - was).sum()) * each, float(was.sum()) * each
    return Difference(
        hours=len(when) * each,
        left_out=(len(times) - len(when)) * each,
        replica_hours=float(will.sum()) * each,
        replica_hours_was=total,
        replicas_changed=changed / total if total else float(changed > 0),
        largest=_largest(was, will, keys, when),
        usd=usd,
        usd_was=usd_was,
        usd_changed=None if usd is None or not usd_was else usd / usd_was - 1,
    )


def _times(plan: Sequence[PoolPlan]) -> tuple[list[datetime], timedelta]:
    """Moments that stand for the plan, each for as long: by the hour, or as short as its steps."""
    steps = [step for pool in plan for step in pool.steps]
    begins, ends = min(step.begins for step in steps), max(step.ends for step in steps)
    shortest = min(step.ends - step.begins for step in steps if step.ends > step.begins)
    each = max(FINEST, min(HOUR, shortest))
    return [begins + n * each for n in range(max(1, int((ends - begins) / each)))], each


def _like(
    pool: PoolPlan | None,
    pools: Sequence[PoolPlan],
    times: Sequence[datetime],
    cycles: Sequence[timedelta] = CYCLES,
) -> FloatArray:
    """Replicas of a pool at ``times``; 0 of a pool that the plan does not have, NaN where it says
    nothing of that time nor of one like it."""
    steps = (pool or pools[0]).steps
    edges = [step.begins for step in steps]
    out = np.full(len(times), np.nan)
    for i, time in enumerate(times):
        for cycle in cycles:
            current = _step(steps, edges, time, cycle)
            if current is not None:
                out[i] = current.replicas if pool else 0
                break
    return out


def _step(
    steps: Sequence[Step], edges: Sequence[datetime], time: datetime, cycle: timedelta
) -> Step | None:
    """The step at ``time``, or so many whole cycles before it as lead into the steps."""
    if not steps:
        return None
    past = time - steps[-1].ends
    back = time - cycle * (past // cycle + 1) if cycle and past >= timedelta(0) else time
    place = bisect_right(edges, back) - 1
    return steps[place] if place >= 0 and back < steps[place].ends else None


def _usd(
    counts: FloatArray,
    keys: Sequence[PoolKey],
    before: Mapping[PoolKey, PoolPlan],
    after: Mapping[PoolKey, PoolPlan],
) -> float | None:
    """At the prices of the new plan, so that only counts make a difference; those of the old for
    pools that it alone has."""
    total = 0.0
    for row, key in zip(counts, keys, strict=True):
        price = next(
            (
                pool.usd_per_hour
                for pool in (after.get(key), before.get(key))
                if pool is not None and pool.usd_per_hour is not None
            ),
            None,
        )
        if price is None and row.any():
            return None
        total += float(row.sum()) * (price or 0.0)
    return total


def _largest(
    was: FloatArray, will: FloatArray, keys: Sequence[PoolKey], when: Sequence[datetime]
) -> Change | None:
    if not was.size or not np.any(will != was):
        return None
    place, hour = np.unravel_index(int(np.argmax(np.abs(will - was))), was.shape)
    name, region = keys[int(place)]
    counts = (int(array[place, hour]) for array in (was, will))
    return Change(name, region, when[int(hour)], *counts)


@dataclass(frozen=True, slots=True)
class Rule:
    """What a plan may differ by and still be put in force without anyone asked: shares of the
    replica-hours and of the cost. None: everything is asked for."""

    replicas: float | None = None
    cost: float | None = None

    def asks(self, difference: Difference | None, missed: Sequence[str]) -> str:
        """Why a person has to decide; "" where the rule does. ``difference`` is None where no plan
        is in force, ``missed`` names the tiers whose targets the replay missed."""
        if self.replicas is None or self.cost is None:
            return "Everything is to be reviewed: no limits are set."
        if missed:
            return f"Its replay missed the target for {', '.join(missed)}."
        if difference is None:
            return "No plan is in force to compare it with."
        if not difference.hours or difference.left_out > difference.hours:
            return "The plan in force says too little of these hours to compare them."
        if difference.replicas_changed > self.replicas:
            return (
                f"{difference.replicas_changed:.1%} of replica-hours differ, above the limit of "
                f"{self.replicas:.1%}."
            )
        if difference.usd_changed is None:
            return "What a replica of it costs is not known."
        if abs(difference.usd_changed) > self.cost:
            return (
                f"Its cost differs by {difference.usd_changed:+.1%}, beyond the limit of "
                f"{self.cost:.1%}."
            )
        return ""
