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
EFFORT = (USD, HOURS, KWH, KG)  # units of which less is better only at equal SLO attainment
# Beginnings of the addresses of settings. Plans that differ in these are not ranked.
PLAN_SETTINGS = (
    "forecast.",
    "objective.spare.",
    "objective.epsilon",
    "objective.limited",
    "objective.utility_usd",
    "tiers[",
)

# Columns of a plan, by heading.
PLAN = {
    "Cost": Column("usd", USD, "of the whole window, starts included", better=LESS),
    "GPU-hours": Column("gpu_hours", HOURS, "of the whole window", better=LESS),
    "Energy": Column("kwh", KWH, "modelled at the load that replicas are sized for", better=LESS),
    "Carbon": Column("carbon_kg", KG, "of that energy", better=LESS),
    "Starts": Column("starts", COUNT, "from the replicas that ran before each decision"),
    "Stops": Column("stops", COUNT, "of the replicas that ran before each decision"),
}
PERCENTILES = {
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
    """A setting that differs between runs: its address in the scenario, and its value in each run.

    The value is None if a run does not have the setting.
    """

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


def compare_settings(
    by_run: Sequence[Mapping[str, Any]],
) -> tuple[tuple[Setting, ...], int]:
    """Return the settings that differ between runs, and the number of those that are equal.

    ``by_run`` has the settings of each run, by address.
    """
    keys = dict.fromkeys(key for settings in by_run for key in settings)
    different = []
    for key in keys:
        values = [settings.get(key) for settings in by_run]
        if any(value != values[0] for value in values):
            different.append(Setting(key, tuple(values)))
    return tuple(different), len(keys) - len(different)


def plan_groups(
    results: Sequence[StoredResult], not_ranked: str, differences: Iterable[Setting]
) -> Iterator[Group]:
    """Yield the group of the plans' figures, if at least two runs have a plan.

    ``not_ranked`` is the reason if the runs are not ranked, else "". ``differences`` are the
    settings in which the runs differ.
    """
    totals = [result.plan.totals if result.plan else None for result in results]
    if not _has_several(totals):
        return
    note = not_ranked
    if not note and any(row.key.startswith(PLAN_SETTINGS) for row in differences):
        note = "The targets differ: the cheaper plan is not better until it is simulated."
    rows = []
    for heading, column in PLAN.items():
        values = [getattr(run_totals, column.name, None) for run_totals in totals]
        rows.append(_compare(column, heading, values, fair=not note))
    yield Group("As planned", (*rows, *_percentile_rows(results)), note)


def _percentile_rows(results: Sequence[StoredResult]) -> Iterator[ComparedFigure]:
    """Yield figures on the forecast percentile that each plan uses, by tier."""
    percentiles_of_runs = []  # by tier
    for result in results:
        rows = result.forecast.quantile if result.forecast else ()
        percentiles_of_runs.append({row.tier: row for row in rows})
    tiers = dict.fromkeys(tier for by_tier in percentiles_of_runs for tier in by_tier)
    for tier in tiers:
        for heading, column in PERCENTILES.items():
            values = [
                getattr(by_tier.get(tier), column.name, None) for by_tier in percentiles_of_runs
            ]
            if any(value is not None for value in values):
                yield _compare(column, f"{heading}, {tier}", values, fair=False)


def replay_groups(
    results: Sequence[StoredResult],
    chosen: Sequence[str],
    not_ranked: str,
    differences: Iterable[Setting],
) -> Iterator[Group]:
    """Yield the group of the simulated policies' figures, if at least two runs have some.

    ``chosen`` is the policy of each run. ``not_ranked`` is the reason if the runs are not ranked,
    else "". If limits of tiers are among ``differences``, only latencies are ranked.
    """
    figures = [_policy_of(result, name) for result, name in zip(results, chosen, strict=True)]
    if not _has_several(figures):
        return
    limits_differ = any(row.key.startswith("tiers[") for row in differences)
    note = not_ranked
    if limits_differ and not note:
        note = "The limits differ: neither SLO attainment nor cost is ranked."
    attainments = [row.slo_attainment if row else {} for row in figures]
    rows = []
    for column, tier, label in _columns(attainments):
        values = [_value(row, column.name, tier) for row in figures]
        are_texts = {isinstance(value, str) for value in values if value}
        # Skip a column without values, or with text and numbers (of different releases).
        if len(are_texts) != 1:
            continue
        is_latency = column.name.endswith("_ms")
        fair = not not_ranked and (is_latency or not limits_differ)
        row = _compare(column, label, values, fair=fair)
        rows.append(_without_unfair_marks(row, attainments) if column.unit in EFFORT else row)
    yield Group("As simulated", tuple(rows), note)


def _policy_of(result: StoredResult, name: str) -> StoredPolicy | None:
    """Return the figures of a simulated policy; None if the run did not simulate it.

    Column "survives" has the lowest attainment after the loss of a replica, over the window and all
    test days.
    """
    simulated = simulated_policy(result, name)
    if simulated is None:
        return None
    policy = result.policies[name]
    columns = {**policy.columns, "survives": simulated.replica_loss.attainment}
    return replace(policy, columns=columns)


def _columns(attainments: Sequence[Attainment]) -> Iterator[tuple[Column, str, str]]:
    """Yield (column, tier, label) of the tables of policies.

    A column with a value per tier comes once for each tier, any other once with the tier "".
    """
    tiers = list(dict.fromkeys(tier for attainment in attainments for tier in attainment))
    for table in (POLICY_TABLE, *DETAIL_TABLES):
        for column in POLICIES.on(table):
            heading = column.heads[table]  # with {} for the name of the tier
            if column.unit in (REASONS, FLAG, TEXT):
                continue
            if "{}" not in heading:
                yield column, "", heading
            elif column.name != "starts":  # its {} is a source of starts, not a tier
                for tier in tiers:
                    yield column, tier, heading.format(tier)


def _without_unfair_marks(row: ComparedFigure, attainments: Sequence[Attainment]) -> ComparedFigure:
    """Return a figure of cost without the marks that unequal SLO attainment makes unfair.

    A lower cost is better only if no tier has a lower attainment than in the first run. A higher
    cost is worse only if no tier has a higher one (methods.md X4). ``attainments`` has the
    attainment of each run by tier.
    """
    first_run = attainments[0]

    def is_unfair(mark: str, attainment: Attainment) -> bool:
        """Return whether the mark of a run with this attainment is unfair."""
        if mark == BETTER:
            return _serves_worse(attainment, first_run)
        return mark == WORSE and _serves_worse(first_run, attainment)

    marks = tuple(
        "" if is_unfair(mark, attainment) else mark
        for mark, attainment in zip(row.marks, attainments, strict=True)
    )
    return replace(row, marks=marks)


def _serves_worse(attainment: Attainment, other: Attainment) -> bool:
    """Return whether the attainment of any tier is below ``other`` by more than EQUAL_SLO."""
    for tier, other_share in other.items():
        share = attainment.get(tier)
        if share is not None and other_share is not None and share < other_share - EQUAL_SLO:
            return True
    return False


def size_groups(results: Sequence[StoredResult], not_ranked: str) -> Iterator[Group]:
    """Yield the group of the capacity of one replica, if at least two runs state it.

    No value is marked better, because looser latency limits give more capacity. ``not_ranked`` is
    the note of the group.
    """
    rows_by_run = []
    for result in results:
        rows = result.capacity or result.pools
        rows_by_run.append({_replica_name(row): row for row in rows if row.max_rps is not None})
    yield from _group_by_name("Replica capacity", rows_by_run, SIZE, fair=False, note=not_ranked)


def _replica_name(row: SizedReplica) -> str:
    """Return model, hardware and (unless it is aggregated) role of a replica as text."""
    replica = row.replica
    name = f"{replica.model} on {replica.arrangement or replica.gpu}"
    # The arrangement of some replicas ends with the role.
    is_complete = replica.role in (None, "mixed") or name.endswith(f", {replica.role}")
    return name if is_complete else f"{name}, {replica.role}"


def error_groups(results: Sequence[StoredResult], not_ranked: str) -> Iterator[Group]:
    """Yield the group of forecast errors by series, if at least two runs state them.

    ``not_ranked`` is the reason if the runs are not ranked, else "".
    """
    rows_by_run = []
    for result in results:
        rows = (result.forecast.series if result.forecast else ()) or result.series
        rows_by_run.append({f"{row.model} in {row.region}, {row.tier}": row for row in rows})
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
    """Yield a group with a figure per name and column, if at least two runs have rows.

    ``rows_by_run`` has the rows of each run by name, ``columns`` the columns by heading. With
    ``fair``, figures are marked better or worse.
    """
    if not _has_several(rows_by_run):
        return
    names = dict.fromkeys(name for rows_of_run in rows_by_run for name in rows_of_run)
    figures = []
    for name in names:
        for heading, column in columns.items():
            values = [
                getattr(rows_of_run.get(name), column.name, None) for rows_of_run in rows_by_run
            ]
            if any(value is not None for value in values):
                figures.append(_compare(column, f"{name}: {heading}", values, fair=fair))
    yield Group(title, tuple(figures), note)


def _has_several(values_of_runs: Sequence[Any]) -> bool:
    """Return whether at least two runs have a value that is not empty."""
    return sum(bool(value) for value in values_of_runs) > 1


def _value(row: StoredPolicy | None, name: str, tier: str) -> Any:
    """Return the value of the column ``name`` of a policy; None if it has none.

    In a column with a value per tier, it is the value of ``tier``.
    """
    value = row.columns.get(name) if row else None
    return (value or {}).get(tier) if tier else value


def _compare(column: Column, label: str, values: Sequence[Any], *, fair: bool) -> ComparedFigure:
    """Return a figure of all runs, with changes and marks relative to the first run.

    Without ``fair``, the runs are not ranked and all marks are "".
    """
    first, *others = values
    changes = [_change(column, first, value) for value in others]
    marks = [_mark(column, first, value) if fair else "" for value in others]
    return ComparedFigure(
        name=column.name,
        label=label,
        unit=column.unit,
        help=column.help,
        values=tuple(values),
        changes=(None, *changes),
        marks=("", *marks),
    )


def _are_numbers(*values: Any) -> bool:
    """Return whether all values are numbers; True and False are not."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _change(column: Column, first: Any, value: Any) -> float | None:
    """Return the change from ``first`` to ``value`` as a fraction, for shares as a difference.

    None if one is not a number, or if only ``first`` is zero.
    """
    if not _are_numbers(first, value):
        return None
    if column.unit == SHARE:
        return float(value - first)
    if first == 0:
        return 0.0 if value == 0 else None
    return float((value - first) / abs(first))


def _mark(column: Column, first: Any, value: Any) -> str:
    """Return "better" or "worse" for ``value`` compared with ``first``.

    Return "" if they are within the tolerance, are not numbers, or have no better direction.
    """
    if not (column.better and _are_numbers(first, value)):
        return ""
    tolerance = EQUAL_SLO if column.unit == SHARE else TOLERANCE * max(abs(first), abs(value))
    if abs(value - first) <= tolerance:
        return ""
    # ``better`` is 1 if more is better, and -1 if less is.
    return BETTER if (value - first) * column.better > 0 else WORSE
