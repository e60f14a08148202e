"""Report a replica schedule: its table, and the replicas and pools that it uses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from planner.domain.formats import zone_name
from planner.domain.report import Form, Head, Table
from planner.domain.reports.tables import Tables
from planner.domain.results.answer import ReplicaSchedule

PREFILL, DECODE = "prefill", "decode"
WHOLE = ("mixed", "both", "")  # roles of replicas that do both phases


@dataclass(frozen=True, slots=True)
class SchedulePool:
    """A pool of a schedule; ``arrangement`` describes the GPUs of a replica."""

    model: str
    region: str
    arrangement: str
    role: str

    @property
    def name(self) -> str:
        """Return model and region, and the role if it is one phase."""
        role = "" if self.role in WHOLE else f", {self.role}"
        return f"{self.model}, {self.region}{role}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """Replicas by pool from each time until the next; ``rows`` are in the order of pools.

    If ``by_itself``, there is one row, and the policy then scales by its own rule.
    """

    pools: tuple[SchedulePool, ...]
    rows: tuple[tuple[datetime, tuple[int, ...]], ...]
    by_itself: bool = False

    @property
    def totals(self) -> tuple[int, ...]:
        """Return the replicas of all pools, by row."""
        return tuple(sum(counts) for _, counts in self.rows)

    def ratio(self) -> str:
        """Return prefill to decode replicas at the peak, such as 11:6; "" without such pools."""
        if not self.rows or not {PREFILL, DECODE} <= {pool.role for pool in self.pools}:
            return ""
        _, peak = max(self.rows, key=lambda row: sum(row[1]))
        replicas_of_role = {
            role: sum(n for pool, n in zip(self.pools, peak, strict=True) if pool.role == role)
            for role in (PREFILL, DECODE)
        }
        return f"{replicas_of_role[PREFILL]}:{replicas_of_role[DECODE]}"


def schedule_of(tables: Tables, policy: str) -> Schedule | None:
    """Return a policy's schedule from the table of all schedules; None if it has none."""
    found = tables("timetables")
    if found.is_empty():
        return None
    rows = found.filter(pl.col("policy") == policy)
    if rows.is_empty():
        return None
    columns = ("model", "region", "arrangement", "role")
    pools = tuple(SchedulePool(*row) for row in rows.select(columns).unique(
        maintain_order=True).iter_rows())  # fmt: skip
    counts: dict[datetime, dict[SchedulePool, int]] = {}
    for begins, replicas, *pool in rows.select("begins", "replicas", *columns).iter_rows():
        by_pool = counts.setdefault(begins, {})
        by_pool[SchedulePool(*pool)] = by_pool.get(SchedulePool(*pool), 0) + replicas
    return Schedule(
        pools,
        tuple(
            (begins, tuple(by_pool.get(pool, 0) for pool in pools))
            for begins, by_pool in sorted(counts.items())
        ),
    )


def schedule_from(timetable: ReplicaSchedule | None) -> Schedule | None:
    """Return the schedule of a recommendation; None if it has no pools."""
    if timetable is None or not timetable.pools:
        return None
    pools = tuple(
        SchedulePool(pool.replica.model, pool.region, pool.replica.arrangement, pool.replica.role)
        for pool in timetable.pools
    )
    rows = tuple((row.begins, tuple(row.replicas)) for row in timetable.rows)
    return Schedule(pools, rows, timetable.by_itself)


def schedule_table(schedule: Schedule, clock: str) -> Table:
    """Return the table of a schedule, with all replicas and those of each pool."""
    from_head = Head("From", Form.MOMENT, zone_name() if clock == "utc" else "since trace start")
    several = len(schedule.pools) > 1
    heads = (
        from_head,
        *((Head("All", Form.COUNT, "replicas"),) if several else ()),
        *(Head(pool.name, Form.COUNT, pool.arrangement) for pool in schedule.pools),
    )
    rows = tuple(
        (begins, *((sum(counts),) if several else ()), *counts) for begins, counts in schedule.rows
    )
    note = (
        "First replicas. The policy then scales by its own rule."
        if schedule.by_itself
        else "Ready replicas per pool. Each row applies until the next."
    )
    return Table(heads, rows, note=note)
