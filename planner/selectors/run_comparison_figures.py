"""Compare figures of runs with the first run's, and mark them better or worse."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.domain.columns import (
    COUNT,
    FLAG,
    HOURS,
    KG,
    KWH,
    LESS,
    MORE,
    NUMBER,
    REASONS,
    SHARE,
    TEXT,
    USD,
    Column,
)
from planner.domain.replay.equal_attainment import EQUAL_SLO
from planner.domain.reports.change import simulated_policy
from planner.domain.results.basis import SizedReplica
from planner.domain.results.figures import DETAIL_TABLES, POLICIES, POLICY_TABLE
from planner.domain.results.stored import StoredForecast, StoredPolicy, StoredResult

Attainment = Mapping[str, float | None]  # by tier, as a share of requests

TOLERANCE = 0.005  # relative difference within which neither figure is marked better
BETTER, WORSE = "better", "worse"
EFFORT = (USD, HOURS, KWH, KG)  # units of effort: less is better only at an equal SLO attainment
# Settings of the demand and service of a plan. Plans that differ in these are not ranked.
PLAN_SETTINGS = (
    "forecast.",
    "objective.spare.",
    "objective.epsilon",
    "objective.limited",
    "objective.utility_usd",
    "tiers[",
)

# Columns by their heading.
PLAN = {
    "Cost": Column("usd", USD, "of the whole window, starts included", better=LESS),
    "GPU-hours": Column("gpu_hours", HOURS, "of the whole window", better=LESS),
    "Energy at rated load": Column(
        "kwh", KWH, "modelled at the load that replicas are sized for", better=LESS
    ),
    "Carbon at rated load": Column("carbon_kg", KG, "of that energy", better=LESS),
    "Starts": Column("starts", COUNT, "from the replicas that ran before each decision"),
    "Stops": Column("stops", COUNT, "of the replicas that ran before each decision"),
}
LEVELS = {
    "Forecast percentile": Column("quantile", NUMBER, "of the forecast that is planned for"),
    "Factor on the percentile": Column("times", NUMBER, "ratio"),
    "Factor for growth": Column(
        "load_factor", NUMBER, "of the recommended policy, chosen on its test days"
    ),
}
SIZE = {
    "requests/s": Column("max_rps", NUMBER, "capacity of one replica, requests/s", better=MORE),
    "input tokens/s": Column(
        "input_tps", NUMBER, "capacity of one replica, input tokens/s", better=MORE
    ),
    "bound by": Column("bound_by", TEXT, "limit that binds"),
}
ERRORS = {
    "error": Column("wape", SHARE, "of demand: absolute errors, on earlier windows", better=LESS),
    "error of peaks": Column("peak_wape", SHARE, "of each period's peak", better=LESS),
}


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting that differs between runs, by its address; None if a run does not have it."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure with its value in each run.

    ``changes`` from the first run are fractions of its value, or differences for shares. ``marks``
    are "better", "worse" or "". The latter also means that values cannot be compared.
    """

    name: str
    label: str
    unit: str
    help: str
    values: tuple[Any, ...]
    changes: tuple[float | None, ...]
    marks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Figures of one table; ``note`` is the reason if no figure is marked better."""

    title: str
    rows: tuple[ComparedFigure, ...]
    note: str = ""


def plan_groups(
    results: Sequence[StoredResult], not_ranked: str, differences: Iterable[Setting]
) -> Iterator[Group]:
    """Yield the figures of plans, if at least two runs have a plan."""
    totals = [result.plan and result.plan.totals for result in results]
    if not _has_several(totals):
        return
    note = not_ranked
    if not note and any(row.key.startswith(PLAN_SETTINGS) for row in differences):
        note = "The targets differ: the cheaper plan is not better until it is simulated."
    rows = [
        _compare(column, head, [getattr(row, column.name, None) for row in totals], fair=not note)
        for head, column in PLAN.items()
    ]
    yield Group("As planned", (*rows, *_percentile_rows(results)), note)


def _percentile_rows(results: Sequence[StoredResult]) -> Iterator[ComparedFigure]:
    """Yield the forecast percentile that each plan uses, by tier."""
    levels_of_runs = [
        {row.tier: row for row in (result.forecast.quantile if result.forecast else ())}
        for result in results
    ]
    for tier in dict.fromkeys(tier for levels in levels_of_runs for tier in levels):
        for head, column in LEVELS.items():
            values = [getattr(levels.get(tier), column.name, None) for levels in levels_of_runs]
            if any(value is not None for value in values):
                yield _compare(column, f"{head}, {tier}", values, fair=False)


def replay_groups(
    results: Sequence[StoredResult],
    chosen: Sequence[str],
    not_ranked: str,
    differences: Iterable[Setting],
) -> Iterator[Group]:
    """Yield the group of the simulated policies' figures, if at least two runs have some.

    ``chosen`` is the policy of each run. ``not_ranked`` is the reason if no run may be marked as
    the best, else "". If tiers' limits are among ``differences``, only latencies are ranked.
    """
    figures = [_policy_of(result, name) for result, name in zip(results, chosen, strict=True)]
    if not _has_several(figures):
        return
    limits = any(row.key.startswith("tiers[") for row in differences)
    note = not_ranked
    if limits and not note:
        note = "The limits differ: neither SLO attainment nor cost is ranked."
    attainments = [row.slo_attainment if row else {} for row in figures]
    rows = []
    for column, tier, label in _columns(attainments):
        values = [_value(row, column.name, tier) for row in figures]
        if not any(values) or len({isinstance(value, str) for value in values if value}) > 1:
            continue
        latency = column.name.endswith("_ms")
        fair = not not_ranked and (not limits or latency)
        marks = _compare(column, label, values, fair=fair)
        rows.append(_without_unfair_marks(marks, attainments) if column.unit in EFFORT else marks)
    yield Group("As simulated", tuple(rows), note)


def _policy_of(result: StoredResult, name: str) -> StoredPolicy | None:
    """Return the figures of a policy, or None.

    Its attainment without a replica is the lowest of the window and the test days.
    """
    found = simulated_policy(result, name)
    if found is None:
        return None
    policy = result.policies[name]
    lowest = {"survives": found.replica_loss.attainment}
    return replace(policy, columns={**policy.columns, **lowest})


def _columns(attainments: Sequence[Attainment]) -> Iterator[tuple[Column, str, str]]:
    """Yield (column, tier, label) of the tables of policies; columns by tier once per tier."""
    tiers = list(dict.fromkeys(tier for attainment in attainments for tier in attainment))
    for table in (POLICY_TABLE, *DETAIL_TABLES):
        for column in POLICIES.on(table):
            head = column.heads[table]
            if column.unit in (REASONS, FLAG, TEXT):
                continue
            if "{}" not in head:
                yield column, "", head
            elif column.name != "starts":
                for tier in tiers:
                    yield column, tier, head.format(tier)


def _without_unfair_marks(row: ComparedFigure, attainments: Sequence[Attainment]) -> ComparedFigure:
    """Return the figures without marks of cost that unequal SLO attainment makes unfair.

    Lower cost is better only if no tier has a lower attainment. Higher cost is worse only if none
    has a higher one (methods.md X4). ``attainments`` has the attainment by tier of each run.
    """
    first_run = attainments[0]

    def is_unfair(mark: str, attainment: Attainment) -> bool:
        if mark == BETTER:
            return _serves_worse(attainment, first_run)
        return mark == WORSE and _serves_worse(first_run, attainment)

    marks = tuple(
        "" if is_unfair(mark, attainment) else mark
        for mark, attainment in zip(row.marks, attainments, strict=True)
    )
    return replace(row, marks=marks)


def _serves_worse(attainment: Attainment, other: Attainment) -> bool:
    """Return whether any tier's attainment is below the other's by more than the tolerance."""
    return any(
        (
            share is not None
            and (own_share := attainment.get(tier)) is not None
            and own_share < share - EQUAL_SLO
        )
        for tier, share in other.items()
    )


def size_groups(results: Sequence[StoredResult], not_ranked: str) -> Iterator[Group]:
    """Yield the capacity of a replica; no value is marked better, since limits decide it."""
    rows_by_run = [
        {
            f"{row.replica.model} on {row.replica.arrangement or row.replica.gpu}"
            + (f" ({row.replica.role})" if row.replica.role not in (None, "mixed") else ""): row
            for row in (result.capacity or result.pools)
            if row.max_rps is not None
        }
        for result in results
    ]
    yield from _group_by_name("Replica capacity", rows_by_run, SIZE, fair=False, note=not_ranked)


def error_groups(results: Sequence[StoredResult], not_ranked: str) -> Iterator[Group]:
    """Yield the forecast errors by series, if at least two runs have them."""
    rows_by_run = [
        {
            f"{row.model} in {row.region}, {row.tier}": row
            for row in (result.forecast.series if result.forecast else ()) or result.series
        }
        for result in results
    ]
    yield from _group_by_name(
        "Forecasts", rows_by_run, ERRORS, fair=not not_ranked, note=not_ranked
    )


def _group_by_name(
    title: str,
    rows_by_run: Sequence[Mapping[str, SizedReplica | StoredForecast]],
    columns: Mapping[str, Column],
    *,
    fair: bool,
    note: str,
) -> Iterator[Group]:
    """Yield a group with a row per name and column, if at least two runs have any.

    ``fair``: the runs may be ranked, so that figures are marked better or worse.
    """
    if not _has_several(rows_by_run):
        return
    rows = [
        _compare(
            column,
            f"{name}: {head}",
            [getattr(rows.get(name), column.name, None) for rows in rows_by_run],
            fair=fair,
        )
        for name in dict.fromkeys(name for rows_of_run in rows_by_run for name in rows_of_run)
        for head, column in columns.items()
    ]
    yield Group(title, tuple(row for row in rows if any(v is not None for v in row.values)), note)


def _has_several(parts: Sequence[Any]) -> bool:
    return sum(bool(part) for part in parts) > 1


def _value(row: StoredPolicy | None, name: str, tier: str) -> Any:
    """Return the value of a column, or that of ``tier`` in a column by tier; None without one."""
    value = row.columns.get(name) if row else None
    return (value or {}).get(tier) if tier else value


def _compare(column: Column, label: str, values: Sequence[Any], *, fair: bool) -> ComparedFigure:
    """Return a figure of all runs, with changes and marks against the first run.

    ``fair``: the runs may be ranked, so that figures are marked better or worse.
    """
    first, *others = values
    return ComparedFigure(
        name=column.name,
        label=label,
        unit=column.unit,
        help=column.help,
        values=tuple(values),
        changes=(None, *(_change(column, first, value) for value in others)),
        marks=("", *(_mark(column, first, value) if fair else "" for value in others)),
    )


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _change(column: Column, first: Any, value: Any) -> float | None:
    """Return the change from ``first``: a fraction, or a difference for shares.

    None: there is no number to compare.
    """
    if not _numbers(first, value):
        return None
    if column.unit == SHARE:
        return float(value - first)
    if first == 0:
        return 0.0 if value == 0 else None
    return float((value - first) / abs(first))


def _mark(column: Column, first: Any, value: Any) -> str:
    """Return "better", "worse" or "" for a value against the first run's."""
    if not (column.better and _numbers(first, value)):
        return ""
    tolerance = EQUAL_SLO if column.unit == SHARE else TOLERANCE * max(abs(first), abs(value))
    if abs(value - first) <= tolerance:
        return ""
    return BETTER if (value - first) * column.better > 0 else WORSE
