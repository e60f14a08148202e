"""Compute the replicas that active plans request now, for /metrics.

The autoscaler of a cluster follows these figures.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import cast
from zoneinfo import ZoneInfo

import numpy as np

from planner.models import ActivePlan
from planner.outputs.manifests.common import METRIC
from planner.outputs.object_names import label_of
from planner.outputs.prometheus_text import family, labels
from planner.outputs.stored_pools import StoredPool, pools_of
from planner.outputs.weekly_pattern import CYCLES, Repeat, Step, minute_of, repeated

IN_FORCE, COVERED = "headroom_plan_in_force", "headroom_plan_covers_now"


@dataclass(frozen=True, slots=True)
class Desired:
    """Desired replicas of a pool now; None if the plan does not cover the present time."""

    pool: str
    region: str
    model: str
    gpu: str
    role: str
    replicas: int | None  # now; null outside the plan's window


def desired(plan: ActivePlan, now: datetime) -> list[Desired]:
    """Return the replicas that a plan requests of each pool at ``now``.

    A dated plan requests nothing outside its dates, so that an autoscaler keeps its current
    replicas.
    """
    local = now.astimezone(ZoneInfo(plan.zone)).replace(tzinfo=None)
    return [
        Desired(
            pool.name, pool.region, pool.model, pool.gpu, pool.role, replicas_at(plan, pool)(local)
        )
        for pool in pools_of(plan)
    ]


def replicas_at(plan: ActivePlan, pool: StoredPool) -> Callable[[datetime], int | None]:
    """Return a function that gives the requested replicas of a pool at a local time.

    It gives None outside the dates of a dated plan.
    """
    return _lookup(pool.steps, cast(Repeat, plan.repeat))


def _lookup(steps: Sequence[Step], repeat: Repeat) -> Callable[[datetime], int | None]:
    """Return a function from local time to replicas (None outside the dates), for many calls."""
    if repeat == "once":
        edges = [step.begins for step in steps]

        def dated(local: datetime) -> int | None:
            step = steps[max(bisect_right(edges, local) - 1, 0)]
            return step.replicas if step.begins <= local < step.ends else None

        return dated
    counts = repeated(steps, repeat)
    return lambda local: int(counts[minute_of(local) % CYCLES[repeat]])


@dataclass(frozen=True, slots=True)
class Change:
    """The next change of the sum of a plan's replicas over all pools, before and after it."""

    at: datetime
    before: int
    after: int


def next_change(plan: ActivePlan, now: datetime) -> Change | None:
    """Return the next change of the plan's replicas, added up over all pools, or None.

    A repeating plan is searched to the end of one repeat. Replicas that only move from one pool to
    another change nothing.
    """
    zone = ZoneInfo(plan.zone)
    local = now.astimezone(zone).replace(tzinfo=None, second=0, microsecond=0)
    pools = [pool.steps for pool in pools_of(plan)]
    repeat = cast(Repeat, plan.repeat)
    if repeat == "once":
        moments = sorted({step.begins for steps in pools for step in steps if step.begins > local})
        lookups = [_lookup(steps, repeat) for steps in pools]
        totals = [sum(at(moment) or 0 for at in lookups) for moment in (local, *moments)]
    else:
        counts = np.array([repeated(steps, repeat) for steps in pools])
        ahead = np.roll(counts.sum(axis=0), -(minute_of(local) % CYCLES[repeat]))
        changed = np.flatnonzero(ahead != ahead[0])
        moments = [local + timedelta(minutes=int(minute)) for minute in changed[:1]]
        totals = [int(ahead[minute]) for minute in (0, *changed[:1])]
    for moment, after in zip(moments, totals[1:], strict=False):
        if after != totals[0]:
            return Change(moment.replace(tzinfo=zone), totals[0], after)
    return None


def gpu_hours_requested(plan: ActivePlan, begins: datetime, ends: datetime) -> float:
    """Return the GPU-hours that an active plan requests from ``begins`` to ``ends``."""
    if plan.repeat == "once":
        return gpu_hours_planned(plan, begins, ends)
    first, last = _local_minutes(plan, begins, ends)
    total = 0
    for pool in pools_of(plan):
        counts = repeated(pool.steps, cast(Repeat, plan.repeat))
        cycles, rest = divmod(last - first, len(counts))
        part = counts[(first + np.arange(rest)) % len(counts)]
        total += (pool.gpus or 1) * int(cycles * counts.sum() + part.sum())
    return total / 60


def gpu_hours_planned(plan: ActivePlan, begins: datetime, ends: datetime) -> float:
    """Return the GPU-hours of a plan's schedule, on its dates, from ``begins`` to ``ends``."""
    first, last = _local_minutes(plan, begins, ends)
    return sum(
        (pool.gpus or 1)
        * step.replicas
        * max(0, min(minute_of(step.ends), last) - max(minute_of(step.begins), first))
        for pool in pools_of(plan)
        for step in pool.steps
    ) / 60  # fmt: skip


def _local_minutes(plan: ActivePlan, begins: datetime, ends: datetime) -> tuple[int, int]:
    """Return two moments as minutes in the plan's local time, as ``minute_of`` counts them."""
    local = begins.astimezone(ZoneInfo(plan.zone)).replace(tzinfo=None)
    first = minute_of(local)
    return first, first + max(0, int((ends - begins) / timedelta(minutes=1)))


def exposition(plans: Iterable[ActivePlan], now: datetime) -> str:
    """Return the active plans in the Prometheus text format (0.0.4)."""
    return "".join(f"{line}\n" for line in _lines(list(plans), now))


def _lines(plans: Sequence[ActivePlan], now: datetime) -> Iterator[str]:
    """Yield the lines by metric: active plans, which of them cover ``now``, replicas."""
    yield from family(IN_FORCE, "1 for each active plan; 0 if there is none.")
    if not plans:
        yield f"{IN_FORCE} 0"
        return
    for plan in plans:
        yield f"{IN_FORCE}{labels(_plan_labels(plan))} 1"
    pools_by_plan = [
        [pool for pool in desired(plan, now) if pool.replicas is not None] for plan in plans
    ]
    yield from family(COVERED, "1: the active plan covers this moment, else 0.")
    for plan, pools in zip(plans, pools_by_plan, strict=True):
        yield f"{COVERED}{labels(_plan_labels(plan))} {int(bool(pools))}"
    yield from family(METRIC, "Replicas that active plans request now.")
    for plan, pools in zip(plans, pools_by_plan, strict=True):
        for pool in pools:
            pool_labels = {
                "pool": pool.pool,
                "region": label_of(pool.region),
                "model": pool.model,
                "gpu": pool.gpu,
                "role": pool.role,
                "run": str(plan.number),
                "scenario": plan.scenario,
            }
            yield f"{METRIC}{labels(pool_labels)} {pool.replicas}"


def _plan_labels(plan: ActivePlan) -> dict[str, str]:
    """Return the labels that identify a plan."""
    return {"run": str(plan.number), "policy": plan.policy, "scenario": plan.scenario}
