"""Write the metrics that Prometheus scrapes: active plans, runs, sign-ins, refused requests.

The format is exposition format 0.0.4. A metric has a header and a sample for each set of labels. A
cluster's autoscaler follows the replicas that active plans request now.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    return [
        PlannedReplicas(
            pool.name, pool.region, pool.model, pool.gpu, pool.role,
            replicas_at_time(plan, pool, now),
        )
        for pool in pools_of(plan)
    ]  # fmt: skip


def replicas_at_time(plan: ActivePlan, pool: StoredPool, now: datetime) -> int | None:
    """Return the replicas that a plan requests of a pool at ``now``; None outside its dates."""
    return replicas_at(plan, pool)(now.astimezone(ZoneInfo(plan.zone)).replace(tzinfo=None))


def replicas_at(plan: ActivePlan, pool: StoredPool) -> Callable[[datetime], int | None]:
    """Return a fast function from local time to a pool's replicas; None outside a plan's dates."""
    steps = pool.steps
    if plan.repeat == "once":
        starts = [step.begins for step in steps]

        def replicas_on_dates(local: datetime) -> int | None:
            step = steps[max(bisect_right(starts, local) - 1, 0)]  # the last one that has begun
            return step.replicas if step.begins <= local < step.ends else None

        return replicas_on_dates
    counts = replicas_without_gaps(steps, cast(Repeat, plan.repeat))
    return lambda local: int(counts[minute_of(local) % len(counts)])


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a plan's replicas, added up over all pools, at a time in the plan's zone."""

    at: datetime
    before: int
    after: int


def next_change(
    plan: ActivePlan, now: datetime, pools: Sequence[StoredPool] | None = None
) -> Change | None:
    """Return the next change of a plan's replicas, within a cycle; or None.

    The replicas are those of ``pools`` together, or of all pools (None).
    """
    zone = ZoneInfo(plan.zone)
    local = now.astimezone(zone).replace(tzinfo=None, second=0, microsecond=0)
    pools = pools_of(plan) if pools is None else pools
    if plan.repeat == "once":
        lookups = [replicas_at(plan, pool) for pool in pools]
        before = sum(replicas(local) or 0 for replicas in lookups)
        for start in sorted({step.begins for pool in pools for step in pool.steps}):
            after = sum(replicas(start) or 0 for replicas in lookups)
            if start > local and after != before:
                return Change(start.replace(tzinfo=zone), before, after)
        return None
    counts = [replicas_without_gaps(pool.steps, cast(Repeat, plan.repeat)) for pool in pools]
    by_minute = np.sum(counts, axis=0)
    # One cycle from now on, so that index 0 is the present minute.
    ahead = np.roll(by_minute, -(minute_of(local) % len(by_minute)))
    changes = np.flatnonzero(ahead != ahead[0])
    if not changes.size:
        return None
    moment = local + timedelta(minutes=int(changes[0]))
    return Change(moment.replace(tzinfo=zone), int(ahead[0]), int(ahead[changes[0]]))


def gpu_hours_requested(plan: ActivePlan, begins: datetime, ends: datetime) -> float:
    """Return the GPU-hours that an active plan requests from ``begins`` to ``ends``.

    A repeating plan requests GPUs at any time, not only on the dates of its schedule.
    """
    if plan.repeat == "once":
        return gpu_hours_planned(plan, begins, ends)
    first, last = _local_minutes(plan, begins, ends)
    gpu_minutes = 0
    for pool in pools_of(plan):
        counts = replicas_without_gaps(pool.steps, cast(Repeat, plan.repeat))
        whole_cycles, rest_minutes = divmod(last - first, len(counts))
        rest = counts[(first + np.arange(rest_minutes)) % len(counts)]
        replica_minutes = whole_cycles * counts.sum() + rest.sum()
        gpu_minutes += (pool.gpus or 1) * int(replica_minutes)
    return gpu_minutes / 60


def gpu_hours_planned(plan: ActivePlan, begins: datetime, ends: datetime) -> float:
    """Return the GPU-hours of a plan's schedule, on its dates, from ``begins`` to ``ends``."""
    first, last = _local_minutes(plan, begins, ends)
    gpu_minutes = 0
    for pool in pools_of(plan):
        for step in pool.steps:
            overlap = min(minute_of(step.ends), last) - max(minute_of(step.begins), first)
            gpu_minutes += (pool.gpus or 1) * step.replicas * max(0, overlap)
    return gpu_minutes / 60


def _local_minutes(plan: ActivePlan, begins: datetime, ends: datetime) -> tuple[int, int]:
    """Return both moments in the plan's local time, as minutes since a Monday in 1970."""
    local = begins.astimezone(ZoneInfo(plan.zone)).replace(tzinfo=None)
    first = minute_of(local)
    return first, first + max(0, int((ends - begins) / timedelta(minutes=1)))


def exposition(*families: Iterable[str]) -> str:
    """Return lines of metrics as a text in the Prometheus format."""
    return "".join(f"{line}\n" for lines in families for line in lines)


def plan_lines(plans: Sequence[ActivePlan], now: datetime) -> Iterator[str]:
    """Yield the lines of metrics on active plans, and on the replicas that they request now."""
    plan_labels = [
        {"run": str(plan.number), "policy": plan.policy, "scenario": plan.scenario}
        for plan in plans
    ]
    in_force = [(each, 1) for each in plan_labels] or [({}, 0)]
    yield from metric_lines(IN_FORCE, in_force)
    if not plans:
        return
    covers, replicas = [], []
    for plan, labels_of_plan in zip(plans, plan_labels, strict=True):
        pools = [pool for pool in desired_by_pool(plan, now) if pool.replicas is not None]
        covers.append((labels_of_plan, int(bool(pools))))
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
            replicas.append((pool_labels, pool.replicas))
    yield from metric_lines(COVERED, covers)
    yield from metric_lines(METRIC, replicas)


def metric_lines(name: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Yield the lines of a metric of HELP: its help, its type, and its samples."""
    yield f"# HELP {name} {HELP[name]}"
    kind = "counter" if name.endswith("_total") else "gauge"
    kind = "summary" if name == RUN_SECONDS else kind
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{_label_text(labels)} {value}"


def _label_text(values: Mapping[str, str]) -> str:
    """Return the labels of a sample in braces, from their values by name; "" without labels."""
    escapes = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
    pairs = (f'{name}="{value.translate(escapes)}"' for name, value in values.items())
    return "{" + ",".join(pairs) + "}" if values else ""


def queue_lines(work: WorkStatistics) -> Iterator[str]:
    """Yield the lines of metrics on unfinished runs, ended runs, and durations of runs."""
    going, oldest = [], []
    for runs in work.going:
        state = WAITING if runs.state == Run.State.PENDING else runs.state
        labels = _run_labels(runs, state=state)
        going.append((labels, runs.runs))
        oldest.append((labels, f"{runs.oldest_s:.3f}"))
    ended = [(_run_labels(r, state=r.state, reason=r.reason), r.runs) for r in work.ended]
    times = [
        (_run_labels(runs, quantile=quantile), f"{seconds:.3f}")
        for runs in work.took
        for quantile, seconds in (("0.5", runs.median_s), ("1", runs.longest_s))
    ]
    yield from metric_lines("headroom_runs_going", going)
    yield from metric_lines("headroom_runs_oldest_seconds", oldest)
    yield from metric_lines("headroom_runs_ended", ended)
    yield from metric_lines(RUN_SECONDS, times)


def _run_labels(runs: UnfinishedRuns | EndedRuns | RunTimes, **more: str) -> dict[str, str]:
    """Return the labels of a metric on runs of one kind in a workspace."""
    return {"workspace": runs.workspace, "kind": runs.kind, **more}


def security_lines(
    events: Mapping[str, int], refusals: Mapping[tuple[int, str], int]
) -> Iterator[str]:
    """Yield the metrics on security events, and on refusals by HTTP status and kind of caller."""
    by_event = (({"event": event}, count) for event, count in events.items())
    yield from metric_lines("headroom_security_events_total", by_event)
    refused = [
        ({"status": str(status), "who": caller}, count)
        for (status, caller), count in refusals.items()
    ]
    yield from metric_lines("headroom_refused_total", refused)
