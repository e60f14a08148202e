"""Report a replica schedule: its table, and the replicas and pools that it uses."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

import polars as pl

from planner.domain.formats import zone_name
from planner.domain.pd.figures import ratio_name
from planner.domain.report import Form, Head, Table, Value
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
        by_role: dict[str, list[int]] = {PREFILL: [], DECODE: []}  # indices of pools
        for i, pool in enumerate(self.pools):
            if pool.role in by_role and model in ("", pool.model):
                by_role[pool.role].append(i)
        prefill, decode = by_role[PREFILL], by_role[DECODE]
        if not prefill or not decode:
            return []
        return [
            (sum(row.replicas[i] for i in prefill), sum(row.replicas[i] for i in decode))
            for row in self.rows
        ]

    def peak_split(self, model: str) -> tuple[int, int]:
        """Return the largest (prefill, decode) replicas of ``model`` in a region at any time.

        Return (0, 0) without such pools.
        """
        largest = (0, 0)
        for row in self.rows:
            counts: Counter[tuple[str, str]] = Counter()  # by region and role
            for pool, replicas in zip(self.pools, row.replicas, strict=True):
                if pool.model == model:
                    counts[pool.region, pool.role] += replicas
            splits = ((counts[region, PREFILL], counts[region, DECODE]) for region, _ in counts)
            largest = max((largest, *splits), key=sum)
        return largest

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
    rows = all_schedules.filter(pl.col("policy") == policy)
    if rows.is_empty():
        return None
    columns = ("model", "region", "arrangement", "role")
    pools: dict[SchedulePool, None] = {}  # in order of appearance
    periods: dict[datetime, datetime | None] = {}  # by the time of the request
    counts: Counter[tuple[datetime, SchedulePool]] = Counter()
    for row in rows.iter_rows(named=True):
        pool = SchedulePool(*(row[column] for column in columns))
        pools[pool] = None
        periods[row["begins"]] = row.get("period")
        counts[row["begins"], pool] += row["replicas"]
    schedule_rows = tuple(
        ScheduleRow(begins, tuple(counts[begins, pool] for pool in pools), periods[begins])
        for begins in sorted(periods)
    )
    return Schedule(tuple(pools), schedule_rows)


def schedule_from(timetable: ReplicaSchedule | None) -> Schedule | None:
    """Return the schedule of a recommendation, for the report; None without one or its pools."""
    if timetable is None or not timetable.pools:
        return None
    pools = tuple(
        SchedulePool(pool.replica.model, pool.region, pool.replica.arrangement, pool.replica.role)
        for pool in timetable.pools
    )
    return Schedule(pools, timetable.rows, timetable.by_itself)


def schedule_table(schedule: Schedule, window: WindowFacts, today: Schedule | None = None) -> Table:
    """Return the table of a schedule: a row per period, with all replicas and those of each pool.

    ``window`` is the time that the schedule covers. ``today`` is the fleet before it, if known.
    Replicas of two periods overlap for a cold start, so a period may have a row in which new
    replicas are requested and one in which others stop. The last one has its replicas.
    """
    # By start of a period: when its new replicas are requested, and the replicas of each pool.
    requested_at = {row.period or row.begins: row.begins for row in reversed(schedule.rows)}
    replicas = {row.period or row.begins: row.replicas for row in schedule.rows}
    starts = list(replicas)
    if today is not None:
        running = dict(zip(today.pools, today.rows[0].replicas, strict=True))
        first_counts = zip(schedule.pools, replicas[starts[0]], strict=True)
        if all(count <= running.get(pool, 0) for pool, count in first_counts):
            requested_at[starts[0]] = starts[0]  # none is new

    zone = zone_name() if window.clock == "utc" else "trace time"
    pool_gpus = {pool.gpus for pool in schedule.pools}
    has_ends = len(starts) > 1
    has_requests = any(requested_at[start] < start for start in starts)
    has_total = len(schedule.pools) > 1
    heads = [Head("From", Form.MOMENT, zone)]
    if has_ends:
        heads.append(Head("To", Form.MOMENT, zone))
    if has_requests:
        heads.append(Head("Request new at", Form.MOMENT, zone))
    if has_total:
        heads.append(Head("All", Form.COUNT, "replicas"))
    for pool in schedule.pools:
        place = f"{pool.place}, {pool.gpus}" if len(pool_gpus) > 1 else pool.place
        heads.append(Head(pool.model, Form.COUNT, place))

    rows = []
    for start, end in zip(starts, [*starts[1:], window.end], strict=True):
        row: list[Value] = [start]
        if has_ends:
            row.append(end)
        if has_requests:
            row.append(requested_at[start] if requested_at[start] < start else None)
        if has_total:
            row.append(sum(replicas[start]))
        rows.append((*row, *replicas[start]))

    note = _schedule_note(schedule, requested_ahead=has_requests)
    if len(pool_gpus) == 1:
        note += f" A replica has {' '.join(pool_gpus)}."
    return Table(tuple(heads), tuple(rows), note=note, steps=True)


def _schedule_note(schedule: Schedule, *, requested_ahead: bool) -> str:
    """Return what to do with the replicas of a schedule."""
    if schedule.by_itself:
        return "First replicas. The policy then scales by its own rule."
    if requested_ahead:
        return (
            "The replicas to run. Request new ones a cold start ahead, at the stated time. Stop "
            "others when the period begins."
        )
    return "The replicas to run."
