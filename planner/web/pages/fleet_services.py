"""List the services of a plan: model, GPUs of a replica, replicas by region, and next change."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from planner.domain.formats import NOTHING, when
from planner.domain.reports.policies import span_text
from planner.domain.reports.schedule import WHOLE, Schedule, SchedulePool
from planner.models import ActivePlan
from planner.outputs.metrics import next_change, replicas_at_time
from planner.outputs.stored_pools import StoredPool, pools_of


@dataclass(frozen=True, slots=True)
class Service:
    """A service of a plan with its replicas as text; ``change`` is their next change."""

    name: str  # model, with the role if it has pools for prefill and decode
    gpus: str  # of a replica
    replicas: str
    regions: str
    change: str = ""


def services_now(plan: ActivePlan, now: datetime) -> list[Service]:
    """Return the services of an active plan, with the replicas that it schedules at ``now``."""
    groups: dict[tuple[str, str], list[StoredPool]] = {}
    for pool in pools_of(plan):
        gpus = pool.arrangement or f"{pool.gpus or 1} x {pool.gpu}"
        key = _name(pool), gpus.removesuffix(f", {pool.role}")
        groups.setdefault(key, []).append(pool)
    services = []
    for (name, gpus), pools in groups.items():
        counts = {pool.region: replicas_at_time(plan, pool, now) for pool in pools}
        known = {region: count for region, count in counts.items() if count is not None}
        regions = _by_region((region, f"{count:,}") for region, count in known.items())
        replicas = f"{sum(known.values()):,}" if known else NOTHING
        services.append(Service(name, gpus, replicas, regions, _change(plan, pools, now)))
    return services


def _change(plan: ActivePlan, pools: Sequence[StoredPool], now: datetime) -> str:
    """Return the next change of the replicas of some pools together, in words."""
    change = next_change(plan, now, pools)
    if change is None:
        return "none within a week"
    date, _, clock = when(change.at).partition(", ")
    day = "" if when(now).startswith(date) else f", {date}"
    return f"{change.after:,} at {clock}{day}"


def services_planned(schedule: Schedule | None) -> list[Service]:
    """Return the services of a result's schedule, with their fewest and most replicas."""
    if schedule is None or not schedule.rows:
        return []
    groups: dict[tuple[str, str], list[int]] = {}
    for i, pool in enumerate(schedule.pools):
        groups.setdefault((_name(pool), pool.gpus), []).append(i)

    def span(columns: Sequence[int]) -> str:
        """Return the fewest and the most replicas of some pools together, as text."""
        totals = [sum(row.replicas[i] for i in columns) for row in schedule.rows]
        return span_text((min(totals), max(totals)))

    return [
        Service(
            name,
            gpus,
            span(columns),
            _by_region((schedule.pools[i].region, span([i])) for i in columns),
        )
        for (name, gpus), columns in groups.items()
    ]


def _name(pool: StoredPool | SchedulePool) -> str:
    """Return the model of a pool, and its role if it does only one phase."""
    return pool.model if pool.role in WHOLE else f"{pool.model}, {pool.role}"


def _by_region(counts: Iterable[tuple[str, str]]) -> str:
    """Return the replicas of each region, such as "us-east 4, us-west 3"."""
    return ", ".join(f"{region} {count}" for region, count in counts)
