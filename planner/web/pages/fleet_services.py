"""List the services of a plan: model, GPUs of a replica, replicas by region, and next change."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from planner.domain.formats import NOTHING, when
from planner.domain.reports.policies import span_text
from planner.domain.reports.schedule import WHOLE, Schedule
from planner.models import ActivePlan
from planner.outputs.metrics import next_change, replicas_at_time
from planner.outputs.stored_pools import StoredPool, pools_of

P = TypeVar("P")  # a pool, as a caller knows it


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
    # By (name of the service, GPUs of a replica): its pools, one or more for each region.
    pools_by_service = _by_service(
        (pool.model, pool.role, pool.arrangement or f"{pool.gpus or 1} x {pool.gpu}", pool)
        for pool in pools_of(plan)
    )
    services = []
    for (name, gpus), pools in pools_by_service.items():
        by_region: dict[str, int] = {}  # replicas; a region may have pools of several markets
        for pool in pools:
            replicas = replicas_at_time(plan, pool, now)
            if replicas is not None:
                by_region[pool.region] = by_region.get(pool.region, 0) + replicas
        total = f"{sum(by_region.values()):,}" if by_region else NOTHING
        change = _change(plan, pools, now)
        services.append(Service(name, gpus, total, _words(by_region), change))
    return services


def services_planned(schedule: Schedule | None) -> list[Service]:
    """Return the services of a result's schedule, with their fewest and most replicas."""
    if schedule is None or not schedule.rows:
        return []

    def span(indices: Sequence[int]) -> str:
        """Return the fewest and the most replicas of some pools together, as text."""
        totals = [sum(row.replicas[i] for i in indices) for row in schedule.rows]
        return span_text((min(totals), max(totals)))

    # By (name of the service, GPUs of a replica): the indices of its pools in the schedule.
    indices_by_service = _by_service(
        (pool.model, pool.role, pool.arrangement, i) for i, pool in enumerate(schedule.pools)
    )
    services = []
    for (name, gpus), indices in indices_by_service.items():
        by_region: dict[str, list[int]] = {}
        for i in indices:
            by_region.setdefault(schedule.pools[i].region, []).append(i)
        spans = {region: span(in_region) for region, in_region in by_region.items()}
        services.append(Service(name, gpus, span(indices), _words(spans)))
    return services


def _by_service(pools: Iterable[tuple[str, str, str, P]]) -> Mapping[tuple[str, str], list[P]]:
    """Return pools by (name of their service, GPUs of a replica).

    ``pools`` are (model, role, arrangement, pool). A service is a model, with its role if the pool
    does only prefill or only decode.
    """
    groups: dict[tuple[str, str], list[P]] = {}
    for model, role, arrangement, pool in pools:
        name = model if role in WHOLE else f"{model}, {role}"
        groups.setdefault((name, arrangement.removesuffix(f", {role}")), []).append(pool)
    return groups


def _change(plan: ActivePlan, pools: Sequence[StoredPool], now: datetime) -> str:
    """Return the next change of the replicas of some pools together, in words."""
    change = next_change(plan, now, pools)
    if change is None:
        return "none within a week"
    date, _, clock = when(change.at).partition(", ")
    day = "" if when(now).startswith(date) else f", {date}"
    return f"{change.after:,} at {clock}{day}"


def _words(replicas: Mapping[str, int] | Mapping[str, str]) -> str:
    """Return the replicas of each region, such as "us-east 4, us-west 3"."""
    return ", ".join(f"{region} {count}" for region, count in replicas.items())
