"""Read what a simulation found about each policy, for the reports that compare or show policies."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

from planner.domain import columns
from planner.domain.columns import Column, Columns
from planner.domain.formats import (
    digits,
    duration,
    figure,
    key_words,
    parameter_text,
    percent,
    signed_percent,
)
from planner.domain.report import (
    Axis,
    Chart,
    Form,
    Group,
    Head,
    Meaning,
    Role,
    Section,
    Series,
    Shape,
    Table,
    TableColumns,
    Value,
    key_columns,
    table,
)
from planner.domain.results.assumptions import ROUTERS
from planner.domain.results.assurance import TestDayFigures
from planner.domain.results.figures import POLICIES, POLICY_TABLE

LOST_REPLICA = "replica_lost"  # kind of test day
Span = tuple[int, int]  # least and most replicas
NO_SAVING = 0.005  # smaller differences of cost are shown as none
ORACLE = "oracle"
UNITS = {
    columns.TEXT: (Form.TEXT, ""), columns.COUNT: (Form.COUNT, ""), columns.FLAG: (Form.TEXT, ""),
    columns.REASONS: (Form.TEXT, ""), columns.SHARE: (Form.SHARE, ""),
} | {
    unit: (Form.NUMBER, unit)
    for unit in (columns.USD, columns.HOURS, columns.KWH, columns.KG, columns.MS, columns.SECONDS)
} | {columns.NUMBER: (Form.NUMBER, "")}  # fmt: skip
# Columns of the table "Requests, GPU-hours and replica starts", with their headings.
WORK_COLUMNS = {
    "arrived": "Arrived", "completed": "Completed", "rejected": "Rejected",
    "unfinished": "Unfinished", "busy_gpu_hours": "Busy GPU", "idle_gpu_hours": "Idle GPU",
    "wasted_gpu_hours": "Starting GPU", "donated_gpu_hours": "Lent as spot",
    "starts_total": "Replica starts", "failed_starts": "Failed starts",
    "refused_starts": "Refused starts",
    "switches": "Role changes", "failures": "Replicas lost", "peak_kw": "Peak kW: {}",
    "reject_reasons": "Why rejected",
}  # fmt: skip
SCHEDULED = {  # settings that the schedule shows
    "replicas at the start", "peak replicas", "replicas at least", "replicas at most"
}  # fmt: skip
GUARD_PREFIX = "above the plan: "  # of the names of settings of a reactive guard
PARAMETER_NAMES = {
    "load_factor": "Load factor: multiple of the planned load",
    "target_factor": "Target load: multiple of the rated load",
    "tolerance": "Tolerance above the target load",
    "rise_s": "Seconds of high load before replicas are added",
    "fall_s": "Guard: seconds before added replicas stop",
    "scale_up_factor": "Maximum scale-up per 15 s, multiple of current replicas",
    "scale_up_instances": "Maximum scale-up per 15 s, replicas",
    "interval_s": "Seconds between scaling decisions",
    "routing.instance": "Routing: choice of a replica",
    "routing.decode": "Routing: choice of a decode replica",
    "routing.endpoint": "Routing: choice of a pool in the region",
    "routing.sees": "Routing: load signal",
    "routing.region_threshold": "Routing: KV memory use that triggers overflow to another region",
    "routing.release_one_below": "Routing: deferred requests start singly below this KV use",
    "routing.release_two_below": "Routing: deferred requests start in pairs below this KV use",
}


@dataclass(frozen=True, slots=True)
class TierOutcome:
    """The SLO attainment target of a tier, as a share of its requests; None if unknown."""

    target: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The figures of a policy in a result; shares and attainment (by tier) are fractions."""

    label: str
    cost_usd: float
    gpu_hours: float
    energy_kwh: float
    carbon_kg: float
    slo_attainment: dict[str, float | None]
    slo_met: dict[str, bool]
    tiers: dict[str, TierOutcome]
    meets_slo: bool
    hindsight: bool  # an oracle baseline, which nobody can run
    survives: float | None  # SLO attainment without a replica, of the tier nearest to a miss
    name: str = ""
    n_plus_1: bool | None = None  # whether every interactive tier meets its SLO without a replica
    utility: float | None = None  # of the requests within every limit

    @property
    def title(self) -> str:
        """Return the label, marked if the policy uses future data."""
        return f"{self.label} ({ORACLE})" if self.hindsight else self.label

    def target(self, tier: str) -> float | None:
        """Return the SLO attainment target of a tier; None if the result lacks it."""
        return self.tiers[tier].target if tier in self.tiers else None


def tightest_tier(outcome: Outcome, tiers: Iterable[str] = ()) -> str | None:
    """Return the tier with the smallest margin of attainment above its target.

    Only ``tiers`` count, unless none of them has a request. None if no tier has a request.
    """
    margins = {
        tier: share - (outcome.target(tier) or 0.0)
        for tier, share in outcome.slo_attainment.items()
        if share is not None
    }
    candidates = [tier for tier in tiers if tier in margins] or list(margins)
    return min(candidates, key=lambda tier: margins[tier], default=None)


class ReplicaLoss(NamedTuple):
    """The effect on a policy of losing one replica; None: unknown.

    ``attainment`` is the lowest SLO attainment of a tier, in the window and on the test day without
    a replica. If the policy misses an SLO in only one of the two, ``where`` names it, and
    ``attainment`` is from there.
    """

    survives: bool | None
    attainment: float | None
    where: str = ""

    @property
    def verdict(self) -> str | None:
        """Return "N+1" or "Not N+1"; None if it is not known."""
        return {True: "N+1", False: "Not N+1", None: None}[self.survives]

    @property
    def meaning(self) -> Meaning:
        """Return what the verdict means for the decision; NEUTRAL if it is not known."""
        return {True: Meaning.MET, False: Meaning.RISK, None: Meaning.NEUTRAL}[self.survives]

    @property
    def effect(self) -> str:
        """Return the effect in words: SLO attainment, or whether an SLO is missed; "": unknown."""
        if self.survives is None:
            return ""
        where = f" {self.where}" if self.where else ""
        if self.attainment is not None:
            return f"{percent(self.attainment)} if 1 fails{where}"
        effect = "meets the SLO" if self.survives else "misses an SLO"
        return f"{effect} if 1 replica fails{where}"


def replica_loss(
    outcome: Outcome, days: Iterable[TestDayFigures], deferrable: Collection[str]
) -> ReplicaLoss:
    """Return what losing one replica does to a policy, in the window and on test days.

    ``outcome`` has its figures in the window. Attainments of ``deferrable`` tiers do not count.
    """
    results = [
        day.policies[outcome.name]
        for day in days
        if day.kind == LOST_REPLICA and outcome.name in day.policies
    ]
    passes = [result.passes for result in results]
    shares = [
        share
        for result in results
        for tier, share in result.attainment.items()
        if share is not None and tier not in deferrable
    ]
    in_window = outcome.n_plus_1  # None: unknown
    if in_window is not None:
        # If window and test days differ, the loss is not survived, and the effect says where.
        if passes and in_window and not all(passes):
            return ReplicaLoss(False, min(shares, default=None), "on a test day")
        if passes and not in_window and all(passes):
            return ReplicaLoss(False, outcome.survives, "in this window")
        passes.append(in_window)
        # Older results have no ``n_plus_1``. Their ``survives`` is a share of time.
        if outcome.survives is not None:
            shares.append(outcome.survives)
    return ReplicaLoss(all(passes) if passes else None, min(shares, default=None))


def span_text(counts: Span) -> str:
    """Return the fewest and the most replicas as text, such as "4 to 7"."""
    low, high = counts
    return f"{high:,}" if low == high else f"{low:,} to {high:,}"


def time_text(window: timedelta) -> str:
    """Return the time that a cost refers to: "per day", or the length of ``window``."""
    return "per day" if window == timedelta(days=1) else f"in {duration(window.total_seconds())}"


def guard_text(scheduled: Span, simulated: Span | None, mean: float | None = None) -> str:
    """Return what a guard adds, such as "up to 27 with guard (mean 20.5)"; "": nothing.

    ``scheduled`` and ``simulated`` are (fewest, most) replicas; None: not known. ``mean`` is the
    mean of the simulated replicas, if known.
    """
    if simulated is None:
        return ""
    (_, most_scheduled), (_, most_simulated) = scheduled, simulated
    if most_simulated <= most_scheduled:
        return ""
    average = "" if mean is None else f" (mean {figure(mean)})"
    return f"up to {most_simulated:,} with guard{average}"


def days_text(passed: int, required: int, level: str) -> str:
    """Return words such as "3 of 4 required test days".

    ``level`` is the level of assurance that requires them; "": unknown.
    """
    if not level:
        return f"{passed} of {required} required test days"
    return f"{passed} of {required} test days required for {level.capitalize()}"


def saving_change(saved: float | None) -> dict[str, Any]:
    """Return the keyword arguments ``change`` and ``meaning`` of a ``Fact`` with a saving.

    ``saved`` is the share of the cost (or energy) saved. If it is None (unknown), there are none.
    """
    if saved is None:
        return {}
    if abs(saved) < NO_SAVING:
        return {"change": "no saving"}
    change = signed_percent(-saved, 0)
    return {"change": change, "meaning": Meaning.SAVING if saved > 0 else Meaning.NEUTRAL}


def cost_chart(
    outcomes: Sequence[Outcome], shown: str, label: str, not_n_plus_1: Collection[str]
) -> Iterator[Chart]:
    """Yield the chart of the cost of each policy, if there are several.

    The legend calls the policy ``shown`` ``label``. Policies in ``not_n_plus_1`` would have to be
    N+1, but are not.
    """
    if len(outcomes) < 2:
        return
    labels = {
        Role.RECOMMENDED: label,
        Role.CAPACITY: "Meets every SLO",
        Role.RISK: "Meets every SLO, not N+1",
        Role.SHORTFALL: "Misses an SLO",
        Role.BASELINE: ORACLE.capitalize(),
    }
    groups: dict[Role, list[Outcome]] = {role: [] for role in labels}
    for row in outcomes:
        if row.name == shown:
            role = Role.RECOMMENDED
        elif row.hindsight:
            role = Role.BASELINE
        elif not row.meets_slo:
            role = Role.SHORTFALL
        else:
            role = Role.RISK if row.name in not_n_plus_1 else Role.CAPACITY
        groups[role].append(row)
    series = []
    for role, rows in groups.items():
        if rows:
            names, costs = tuple(row.title for row in rows), tuple(row.cost_usd for row in rows)
            series.append(Series(labels[role], names, costs, role, Shape.BAR))
    yield Chart("Cost of each policy", Axis(), Axis(unit="$"), tuple(series), horizontal=True)


@dataclass(frozen=True, slots=True)
class Row:
    """A policy in a table: its title, and its stored figures by name of column."""

    title: str
    figures: Mapping[str, Any]


def columns_of(name: str, rows: Sequence[Row], declared: Columns = POLICIES) -> TableColumns[Row]:
    """Return the columns of the table ``name``, of those that are ``declared`` for results."""
    by_column = (_table_columns(column, column.heads[name], rows) for column in declared.on(name))
    return tuple(chain(*by_column))


def _table_columns(column: Column, head: str, rows: Sequence[Row]) -> TableColumns[Row]:
    """Return the column of a table, under the heading ``head``, for a declared column.

    If ``head`` has a placeholder ({}), the column's values are mappings, such as by tier: return a
    column for each of their keys.
    """
    form, unit = UNITS[column.unit]
    if "{}" in head:
        return key_columns(rows, Head(head, form, unit), lambda row: row.figures.get(column.name))
    width = 3 if column.unit == columns.REASONS else 1
    return ((Head(head, form, unit, width), partial(_cell, column)),)


def _cell(column: Column, row: Row) -> Value:
    """Return a policy's figure in a column, with flags and counted reasons as words."""
    value = row.figures.get(column.name)
    if column.unit == columns.FLAG and value is not None:
        return "yes" if value else "no"
    if column.unit == columns.REASONS:
        return "; ".join(f"{why}: {count:,}" for why, count in (value or {}).items())
    return value


def policies_table(
    rows: Sequence[Row],
    recommended: str | None,
    savings: Mapping[str, float | None],
    *test_day_columns: tuple[Head, Callable[[Row], Value]],
) -> Table:
    """Return a table with a row per policy; that of the ``recommended`` one is highlighted.

    ``savings`` are by policy, as shares of the baseline's cost; None: unknown.
    """
    return table(
        rows,
        (Head("Policy", width=3), lambda row: row.title),
        (Head("Saving vs baseline", Form.SHARE), lambda row: savings.get(row.figures["name"])),
        *columns_of(POLICY_TABLE, rows),
        *test_day_columns,
        marked=lambda row: row.figures["name"] == recommended,
        note="Sorted by cost, policies that miss an SLO last. Saving: at equal SLO attainment. "
        "One replica lost: the lower of this window and the test day.",
    )


class TierRow(NamedTuple):
    """The row of a policy, and one of its tiers."""

    row: Row
    tier: str

    def figure(self, name: str) -> Value:
        """Return the tier's value of the column ``name``; None if the result lacks it."""
        value: Value = (self.row.figures.get(name) or {}).get(self.tier)
        return value


LATENCY_COLUMNS = (  # headings, and names of columns with a figure per tier
    (Head("SLO attainment", Form.SHARE), "slo_attainment"),
    (Head("Worst hour", Form.SHARE), "worst_hour"),
    (Head("Hours below target", Form.COUNT), "missed_hours"),
    (Head("TTFT p95", Form.NUMBER, "ms"), "ttft_p95_ms"),
    (Head("TPOT p95", Form.NUMBER, "ms"), "tbt_p95_ms"),
    (Head("E2E p95", Form.NUMBER, "ms"), "e2e_p95_ms"),
)


def latency_table(rows: Sequence[Row]) -> Table:
    """Return a table with a row per policy and tier: attainment, worst hours and latencies."""
    tier_rows = [
        TierRow(row, tier) for row in rows for tier in row.figures.get("slo_attainment") or ()
    ]
    return table(
        tier_rows,
        (Head("Policy", width=3), lambda tier_row: tier_row.row.title),
        (Head("Tier"), lambda tier_row: tier_row.tier),
        *((head, partial(TierRow.figure, name=name)) for head, name in LATENCY_COLUMNS),
        title="Latency by tier",
        note="Worst hour: lowest attainment among hours with at least 100 requests.",
    )


def work_table(rows: Sequence[Row]) -> Table:
    """Return a table with a row per policy: requests rejected, GPU-hours idle, starts and so on.

    A column is left out if it is zero for all policies, or the same number for several.
    """
    columns: list[tuple[Head, Callable[[Row], Value]]] = []
    for name, heading in WORK_COLUMNS.items():
        for head, value_of in _table_columns(POLICIES.column(name), heading, rows):
            values = {value_of(row) for row in rows}
            is_same_number = head.numeric and len(values) == 1 and len(rows) > 1
            if any(values) and not is_same_number:
                columns.append((head, value_of))
    return table(
        rows,
        (Head("Policy", width=3), lambda row: row.title),
        *columns,
        title="Requests, GPU-hours and replica starts",
        note="Starting replicas are billed, but serve no requests.",
    )


def simulation_section(rows: Sequence[Row], compared: Sequence[Row]) -> Section:
    """Return the section with the latencies of ``compared`` policies, and the work of all ``rows``.

    A terminal prints it only if there is one policy.
    """
    return Section(
        "Latency, requests, GPU-hours and replica starts",
        (latency_table(compared), work_table(rows)),
        "Simulation",
        group=Group.POLICIES,
        printed=len(rows) == 1,
    )


def parameters_section(row: Row) -> Iterator[Section]:
    """Yield the section with the parameters of a policy, if it has any.

    Pools that have the same value share a row.
    """
    pools_by_parameter: dict[tuple[str, str], list[str]] = {}  # by key and value of the parameter
    for setting in row.figures.get("settings") or ():
        if setting["what"] not in SCHEDULED:
            value = setting["value"]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            text = digits(value) if is_number else ROUTERS.get(value, parameter_text(value))
            key_and_text = setting["what"], text
            pools_by_parameter.setdefault(key_and_text, []).append(setting["where"] or "all")
    if pools_by_parameter:
        rows = [
            (_parameter_name(key), text, "; ".join(names))
            for (key, text), names in pools_by_parameter.items()
        ]
        heads = Head("Parameter", width=2), Head("Value"), Head("Pool", width=3)
        parameters = Table(heads, tuple(rows))
        title = f"Parameters of {row.title}"
        yield Section(title, (parameters,), "Parameters", group=Group.PLAN)


def _parameter_name(key: str) -> str:
    """Return the name of a parameter for people."""
    if key.startswith(GUARD_PREFIX):
        name = key.removeprefix(GUARD_PREFIX).replace("of that load", "of the load limit")
        share, _, replicas = name.partition(", pools of ")
        if replicas:
            return f"Guard threshold, pools of {replicas}: {share}"
        return f"Guard load limit: {name}" if name.endswith("per replica") else f"Guard: {name}"
    return PARAMETER_NAMES.get(key, key_words(key))
