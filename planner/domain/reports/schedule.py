"""Report a replica schedule: its table, and the replicas and pools that it uses."""

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import NamedTuple

import polars as pl

from planner.domain.formats import zone_name
from planner.domain.pd.figures import ratio_name
from planner.domain.report import Form, Head, Table, table
from planner.domain.reports.tables import Tables
from planner.domain.results.answer import ReplicaSchedule, ScheduleRow, span_of
from planner.domain.results.basis import WindowFacts

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
    def place(self) -> str:
        """Return the region, and the role if the pool does only prefill or only decode."""
        return self.region + ("" if self.role in WHOLE else f", {self.role}")

    @property
    def name(self) -> str:
        """Return the model and the region, and the role as in ``place``."""
        return f"{self.model}, {self.place}"

    @property
    def gpus(self) -> str:
        """Return the GPUs of a replica without the role, which ``name`` has."""
        return self.arrangement.removesuffix(f", {self.role}")


@dataclass(frozen=True, slots=True)
class Schedule:
    """The replicas to request over time; the counts of each row are in the order of ``pools``.

    With ``by_itself``, there is one row with the first replicas. The policy then scales by its own
    rule.
    """

    pools: tuple[SchedulePool, ...]
    rows: tuple[ScheduleRow, ...]
    by_itself: bool = False

    @property
    def totals(self) -> tuple[int, ...]:
        """Return the replicas of all pools, by row."""
        return tuple(sum(row.replicas) for row in self.rows)

    @property
    def span(self) -> tuple[int, int] | None:
        """Return the (fewest, most) replicas of a row; None without rows."""
        return span_of(self.rows)

    def phases(self, model: str = "") -> list[tuple[int, int]]:
        """Return the (prefill, decode) replicas of each row, of one ``model`` or all ("").

        [] if there are not both kinds of pools.
        """
        roles = [pool.role if model in ("", pool.model) else "" for pool in self.pools]
        if PREFILL not in roles or DECODE not in roles:
            return []
        phases = []
        for row in self.rows:
            counts: Counter[str] = Counter()  # replicas by role
            for role, replicas in zip(roles, row.replicas, strict=True):
                counts[role] += replicas
            phases.append((counts[PREFILL], counts[DECODE]))
        return phases

    def peak_split(self, model: str) -> tuple[int, int, str]:
        """Return the prefill and decode replicas of ``model`` with the largest sum, and the region.

        They are those of one region at one time; (0, 0, "") without such pools.
        """
        splits = [(0, 0, "")]
        for row in self.rows:
            counts: Counter[tuple[str, str]] = Counter()  # by region and role
            for pool, replicas in zip(self.pools, row.replicas, strict=True):
                if pool.model == model:
                    counts[pool.region, pool.role] += replicas
            splits += [
                (counts[region, PREFILL], counts[region, DECODE], region) for region, _ in counts
            ]
        return max(splits, key=lambda split: split[0] + split[1])

    def split(self, model: str = "") -> str:
        """Return the fewest and the most prefill and decode replicas, as "7P:4D to 8P:4D".

        They are those of one ``model`` or of all (""). "" if there are not both kinds of pools.
        """
        phases = self.phases(model)
        if not phases:
            return ""
        prefill = [count for count, _ in phases]
        decode = [count for _, count in phases]
        low, high = ratio_name(min(prefill), min(decode)), ratio_name(max(prefill), max(decode))
        return low if low == high else f"{low} to {high}"

    @property
    def ratios(self) -> str:
        """Return the models with prefill and decode pools, each with its ratio; "" without."""
        models = dict.fromkeys(pool.model for pool in self.pools if self.split(pool.model))
        return ", ".join(f"{model} {self.split(model)}" for model in models)


def schedule_of(tables: Tables, policy: str) -> Schedule | None:
    """Return the schedule of ``policy`` from the table "timetables"; None if it has none."""
    all_schedules = tables("timetables")
    if all_schedules.is_empty():
        return None
    pools: dict[SchedulePool, None] = {}  # in order of appearance
    periods: dict[datetime, datetime | None] = {}  # by the time of the request
    counts: Counter[tuple[datetime, SchedulePool]] = Counter()
    for row in all_schedules.filter(pl.col("policy") == policy).iter_rows(named=True):
        pool = SchedulePool(row["model"], row["region"], row["arrangement"], row["role"])
        begins = row["begins"]
        pools[pool] = None
        periods[begins] = row.get("period")
        counts[begins, pool] += row["replicas"]
    if not pools:
        return None
    rows = []
    for begins in sorted(periods):
        replicas = tuple(counts[begins, pool] for pool in pools)
        rows.append(ScheduleRow(begins, replicas, periods[begins]))
    return Schedule(tuple(pools), tuple(rows))


def schedule_from(timetable: ReplicaSchedule | None) -> Schedule | None:
    """Return the schedule of a recommendation, for the report; None without one or its pools."""
    if timetable is None or not timetable.pools:
        return None
    pools = tuple(
        SchedulePool(pool.replica.model, pool.region, pool.replica.arrangement, pool.replica.role)
        for pool in timetable.pools
    )
    return Schedule(pools, timetable.rows, timetable.by_itself)


class Period(NamedTuple):
    """A period of a schedule, with the replicas of each pool.

    ``requested`` is when its new replicas are requested; None: at its start, or none is new.
    """

    begins: datetime
    ends: datetime
    requested: datetime | None
    replicas: tuple[int, ...]


def schedule_table(schedule: Schedule, window: WindowFacts, today: Schedule | None = None) -> Table:
    """Return the table of a schedule: a row per period, with all replicas and those of each pool.

    ``window`` is the time that the schedule covers. ``today`` is the fleet before it, if known.
    """
    periods = _periods(schedule, window.end, today)
    zone = zone_name() if window.clock == "utc" else "trace time"
    several_periods, several_pools = len(periods) > 1, len(schedule.pools) > 1
    gpus_of_replicas = {pool.gpus for pool in schedule.pools}
    pool_columns = []
    for i, pool in enumerate(schedule.pools):
        place = f"{pool.place}, {pool.gpus}" if len(gpus_of_replicas) > 1 else pool.place
        pool_columns.append((Head(pool.model, Form.COUNT, place), partial(_replicas, i)))
    requested_ahead = any(row.requested is not None for row in periods)
    note = _schedule_note(schedule, requested_ahead=requested_ahead)
    if len(gpus_of_replicas) == 1:
        note += f" Each replica has {' '.join(gpus_of_replicas)}."
    rows = table(
        periods,
        (Head(f"From ({zone})", Form.MOMENT), lambda row: row.begins),
        (Head(f"To ({zone})", Form.MOMENT), lambda row: row.ends if several_periods else None),
        (Head(f"Start new at ({zone})", Form.MOMENT), lambda row: row.requested),
        (Head("All", Form.COUNT, "replicas"),
         lambda row: sum(row.replicas) if several_pools else None),
        *pool_columns,
        note=note,
    )  # fmt: skip
    return replace(rows, steps=True)


def _replicas(pool_index: int, row: Period) -> int:
    """Return the replicas of a pool in a period."""
    return row.replicas[pool_index]


def _periods(schedule: Schedule, end: datetime, today: Schedule | None) -> list[Period]:
    """Return the periods of a schedule up to ``end``.

    Replicas of two periods overlap for a cold start, so a period may have a row in which new
    replicas are requested and one in which others stop. The last one has its replicas.
    """
    # By start of the period: the time of its first row (reversed, so that the first one stays), and
    # the replicas of its last row.
    requested_at = {row.period or row.begins: row.begins for row in reversed(schedule.rows)}
    replicas = {row.period or row.begins: row.replicas for row in schedule.rows}
    starts = list(replicas)
    first = starts[0]
    if today is not None:
        running = dict(zip(today.pools, today.rows[0].replicas, strict=True))
        first_counts = zip(schedule.pools, replicas[first], strict=True)
        if all(count <= running.get(pool, 0) for pool, count in first_counts):
            requested_at[first] = first  # none is new
    periods = []
    for start, stop in zip(starts, [*starts[1:], end], strict=True):
        requested = requested_at[start] if requested_at[start] < start else None
        periods.append(Period(start, stop, requested, replicas[start]))
    return periods


def _schedule_note(schedule: Schedule, *, requested_ahead: bool) -> str:
    """Return what to do with the replicas of a schedule."""
    if schedule.by_itself:
        return "First replicas. The policy then scales by its own rule."
    if requested_ahead:
        return (
            "Start new replicas at the stated time, one cold start before the period. Stop surplus "
            "replicas when the period begins."
        )
    return "The replicas to run."
