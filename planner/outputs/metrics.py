"""Write the metrics that Prometheus scrapes: active plans, runs, sign-ins, refused requests.

The format is exposition format 0.0.4. A metric has a header and a sample for each set of labels. A
cluster's autoscaler follows the replicas that active plans request now.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import cast
from zoneinfo import ZoneInfo

import numpy as np

from planner.models import ActivePlan, Run
from planner.outputs.manifests.common import METRIC
from planner.outputs.object_names import label_of
from planner.outputs.stored_pools import StoredPool, pools_of
from planner.outputs.weekly_pattern import Repeat, minute_of, replicas_without_gaps
from planner.selectors.queue_statistics import EndedRuns, RunTimes, UnfinishedRuns, WorkStatistics

IN_FORCE, COVERED = "headroom_plan_in_force", "headroom_plan_covers_now"
RUN_SECONDS = "headroom_run_seconds"
HELP = {
    IN_FORCE: "1 for each active plan; 0 if there is none.",
    COVERED: "1: the active plan covers this moment, else 0.",
    METRIC: "Replicas that active plans request now.",
    "headroom_runs_going": "Runs that wait for a worker, or run.",
    "headroom_runs_oldest_seconds": "Since the oldest one was requested or started.",
    "headroom_runs_ended": "Stored runs with this end state, without removed runs.",
    RUN_SECONDS: "How long the newest completed runs took: median and longest.",
    "headroom_security_events_total": "What the audit log tells of signing in.",
    "headroom_refused_total": "Refused requests, by status. 404 includes rows of another "
    "workspace.",
}
Sample = tuple[Mapping[str, str], object]  # labels and value of a metric
WAITING = "waiting"  # label of the state that the database calls pending


@dataclass(frozen=True, slots=True)
class PlannedReplicas:
    """The replicas that a plan requests of a pool at one moment."""

    pool: str
    region: str
    model: str
    gpu: str
    role: str
    replicas: int | None  # None if the plan does not cover the moment


def desired_by_pool(plan: ActivePlan, now: datetime) -> list[PlannedReplicas]:
    """Return the replicas that a plan requests of each pool at ``now``.

    A dated plan requests nothing (None) outside its dates. An autoscaler then keeps its replicas.
    """
    planned = []
    for pool in pools_of(plan):
        replicas = replicas_at_time(plan, pool, now)
        planned.append(
            PlannedReplicas(pool.name, pool.region, pool.model, pool.gpu, pool.role, replicas)
        )
    return planned


def replicas_at_time(plan: ActivePlan, pool: StoredPool, now: datetime) -> int | None:
    """Return the replicas that a plan requests of a pool at ``now``; None outside its dates."""
    replicas_at = replicas_lookup(plan, pool)
    return replicas_at(_local_time(plan, now))


def _local_time(plan: ActivePlan, moment: datetime) -> datetime:
    """Return ``moment`` in the local time of a plan, without a zone, as its steps have it."""
    return moment.astimezone(ZoneInfo(plan.zone)).replace(tzinfo=None)


def replicas_lookup(plan: ActivePlan, pool: StoredPool) -> Callable[[datetime], int | None]:
    """Return a fast function of a time in the plan's zone, which returns the pool's replicas.

    The function returns None for a time outside the dates of a plan that runs once.
    """
    if plan.repeat == "once":
        starts = [step.begins for step in pool.steps]

        def replicas_on_dates(local: datetime) -> int | None:
            begun_steps = bisect_right(starts, local)
            step = pool.steps[max(begun_steps - 1, 0)]  # the last one that has begun
            return step.replicas if step.begins <= local < step.ends else None

        return replicas_on_dates

    by_minute = replicas_without_gaps(pool.steps, cast(Repeat, plan.repeat))

    def replicas_in_cycle(local: datetime) -> int:
        return int(by_minute[minute_of(local) % len(by_minute)])

    return replicas_in_cycle


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a plan's replicas, added up over all pools, at a time in the plan's zone."""

    at: datetime
    before: int
    after: int


def next_change(
    plan: ActivePlan, now: datetime, pools: Sequence[StoredPool] | None = None
) -> Change | None:
    """Return the next change after ``now`` of a plan's replicas; None if there is none.

    The replicas are those of ``pools`` together, or of all pools (None). A daily plan is searched
    for a day, a weekly one for a week.
    """
    local = _local_time(plan, now).replace(second=0, microsecond=0)
    pools = pools_of(plan) if pools is None else pools
    if plan.repeat == "once":
        change = _next_dated(plan, local, pools)
    else:
        change = _next_recurring(cast(Repeat, plan.repeat), local, pools)
    if change is None:
        return None
    return replace(change, at=change.at.replace(tzinfo=ZoneInfo(plan.zone)))


def _next_dated(plan: ActivePlan, local: datetime, pools: Sequence[StoredPool]) -> Change | None:
    """Return the next change after ``local`` of a plan that runs once, in local time; or None."""
    lookups = [replicas_lookup(plan, pool) for pool in pools]
    before = sum(replicas_at(local) or 0 for replicas_at in lookups)
    starts = {step.begins for pool in pools for step in pool.steps}
    for start in sorted(starts):
        after = sum(replicas_at(start) or 0 for replicas_at in lookups)
        if start > local and after != before:
            return Change(start, before, after)
    return None


def _next_recurring(repeat: Repeat, local: datetime, pools: Sequence[StoredPool]) -> Change | None:
    """Return the next change after ``local`` of a daily or weekly plan, in local time; or None."""
    # Replicas of all pools together, by minute of the day or week.
    by_minute = np.sum([replicas_without_gaps(pool.steps, repeat) for pool in pools], axis=0)
    # One cycle from now on, so that index 0 is the present minute.
    from_now = np.roll(by_minute, -(minute_of(local) % len(by_minute)))
    changed_minutes = np.flatnonzero(from_now != from_now[0])
    if not changed_minutes.size:
        return None
    first = int(changed_minutes[0])
    return Change(local + timedelta(minutes=first), int(from_now[0]), int(from_now[first]))


def gpu_hours_requested(plan: ActivePlan, begins: datetime, ends: datetime) -> float:
    """Return the GPU-hours that an active plan requests from ``begins`` to ``ends``.

    A repeating plan requests GPUs at any time, not only on the dates of its schedule.
    """
    if plan.repeat == "once":
        return gpu_hours_planned(plan, begins, ends)
    first_minute, end_minute = _local_minutes(plan, begins, ends)
    gpu_minutes = 0
    for pool in pools_of(plan):
        by_minute = replicas_without_gaps(pool.steps, cast(Repeat, plan.repeat))
        cycle_minutes = len(by_minute)
        whole_cycles, rest_minutes = divmod(end_minute - first_minute, cycle_minutes)
        # The last, incomplete cycle begins at the same minute of the cycle as the first one.
        rest = by_minute[(first_minute + np.arange(rest_minutes)) % cycle_minutes]
        replica_minutes = whole_cycles * by_minute.sum() + rest.sum()
        gpu_minutes += (pool.gpus or 1) * int(replica_minutes)
    return gpu_minutes / 60


def gpu_hours_planned(plan: ActivePlan, begins: datetime, ends: datetime) -> float:
    """Return the GPU-hours of a plan's schedule, on its dates, from ``begins`` to ``ends``."""
    first_minute, end_minute = _local_minutes(plan, begins, ends)
    gpu_minutes = 0
    for pool in pools_of(plan):
        for step in pool.steps:
            step_begins = max(minute_of(step.begins), first_minute)
            step_ends = min(minute_of(step.ends), end_minute)
            minutes = max(0, step_ends - step_begins)
            gpu_minutes += (pool.gpus or 1) * step.replicas * minutes
    return gpu_minutes / 60


def _local_minutes(plan: ActivePlan, begins: datetime, ends: datetime) -> tuple[int, int]:
    """Return both moments in the plan's local time, as minutes since a Monday in 1970."""
    first_minute = minute_of(_local_time(plan, begins))
    minutes = int((ends - begins) / timedelta(minutes=1))
    return first_minute, first_minute + max(0, minutes)


def exposition(*families: Iterable[str]) -> str:
    """Return lines of metrics as a text in the Prometheus format."""
    return "".join(f"{line}\n" for lines in families for line in lines)


def plan_lines(plans: Sequence[ActivePlan], now: datetime) -> Iterator[str]:
    """Yield the lines of metrics on active plans, and on the replicas that they request now."""
    if not plans:
        yield from metric_lines(IN_FORCE, [({}, 0)])
        return
    in_force: list[Sample] = []
    covers_now: list[Sample] = []
    replicas: list[Sample] = []
    for plan in plans:
        run, scenario = str(plan.number), plan.scenario
        plan_labels = {"run": run, "policy": plan.policy, "scenario": scenario}
        pools = [pool for pool in desired_by_pool(plan, now) if pool.replicas is not None]
        in_force.append((plan_labels, 1))
        covers_now.append((plan_labels, 1 if pools else 0))
        for pool in pools:
            pool_labels = {
                "pool": pool.pool,
                "region": label_of(pool.region),
                "model": pool.model,
                "gpu": pool.gpu,
                "role": pool.role,
                "run": run,
                "scenario": scenario,
            }
            replicas.append((pool_labels, pool.replicas))
    yield from metric_lines(IN_FORCE, in_force)
    yield from metric_lines(COVERED, covers_now)
    yield from metric_lines(METRIC, replicas)


def metric_lines(name: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Yield the lines of a metric of HELP: its help, its type, and its samples."""
    if name == RUN_SECONDS:
        kind = "summary"
    elif name.endswith("_total"):
        kind = "counter"
    else:
        kind = "gauge"
    yield f"# HELP {name} {HELP[name]}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{_label_text(labels)} {value}"


def _label_text(labels: Mapping[str, str]) -> str:
    """Return the labels of a sample in braces, from their values by name; "" without labels."""
    if not labels:
        return ""
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    pairs = [f'{name}="{value.translate(escapes)}"' for name, value in labels.items()]
    return "{" + ",".join(pairs) + "}"


def queue_lines(work: WorkStatistics) -> Iterator[str]:
    """Yield the lines of metrics on unfinished runs, ended runs, and durations of runs."""
    unfinished: list[Sample] = []
    oldest: list[Sample] = []
    for group in work.unfinished:  # runs of one workspace, kind and state
        state = WAITING if group.state == Run.State.PENDING else group.state
        labels = _run_labels(group, state=state)
        unfinished.append((labels, group.runs))
        oldest.append((labels, f"{group.oldest_s:.3f}"))
    yield from metric_lines("headroom_runs_going", unfinished)
    yield from metric_lines("headroom_runs_oldest_seconds", oldest)
    ended = [
        (_run_labels(group, state=group.state, reason=group.reason), group.runs)
        for group in work.ended
    ]
    yield from metric_lines("headroom_runs_ended", ended)
    durations: list[Sample] = []
    for times in work.times:
        durations.append((_run_labels(times, quantile="0.5"), f"{times.median_s:.3f}"))
        durations.append((_run_labels(times, quantile="1"), f"{times.longest_s:.3f}"))
    yield from metric_lines(RUN_SECONDS, durations)


def _run_labels(runs: UnfinishedRuns | EndedRuns | RunTimes, **more: str) -> dict[str, str]:
    """Return the labels of a metric on runs of one kind in a workspace."""
    return {"workspace": runs.workspace, "kind": runs.kind, **more}


def security_lines(
    events: Mapping[str, int], refusals: Mapping[tuple[int, str], int]
) -> Iterator[str]:
    """Yield the metrics on security events, and on refusals by HTTP status and kind of caller."""
    event_samples = [({"event": event}, count) for event, count in events.items()]
    yield from metric_lines("headroom_security_events_total", event_samples)
    refusal_samples = [
        ({"status": str(status), "who": caller}, count)
        for (status, caller), count in refusals.items()
    ]
    yield from metric_lines("headroom_refused_total", refusal_samples)
