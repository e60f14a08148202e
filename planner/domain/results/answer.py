"""Build the recommendation as one sentence, with the replica schedule."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
import polars as pl

from planner.domain.formats import percent
from planner.domain.planning.planning import requests_over_time
from planner.domain.planning.spare_replicas import loss_words
from planner.domain.replicas import REPLICA, Replica, replica_of
from planner.domain.results.equal_attainment_savings import cost_difference_words
from planner.domain.results.warnings import missed_tiers
from planner.domain.serialise import moment
from planner.domain.study import PolicyRun, Study
from planner.domain.traffic.window_rank import day_words, time_words
from planner.optimizer.problem import ScalingPlan
from planner.policies.base import Traits
from planner.policies.registry import traits_of
from simulation.arrays import FloatArray, IntArray
from simulation.energy import hours_of

DAY_S, MONTH = 86_400.0, 30  # days
ABOUT = 0.01  # tolerance of a limit: overlapping starts cost a little more than planned


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool of a replica schedule: its region and its kind of replica."""

    region: str
    replica: Replica


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """The replicas to request of each pool from ``begins`` until the next row.

    They serve in the period that starts at ``period``. Results of earlier releases do not have it;
    there, ``begins`` is the start of the period.
    """

    begins: datetime
    replicas: tuple[int, ...]
    period: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReplicaSchedule:
    """A replica schedule with one row per change of what to request.

    If ``by_itself``, it has one row, and the policy then scales by its own rule.
    """

    pools: tuple[Pool, ...]
    rows: tuple[ScheduleRow, ...]
    by_itself: bool


def span_of(rows: Iterable[ScheduleRow]) -> tuple[int, int] | None:
    """Return the least and the most replicas of a period; None without rows.

    The last row of a period counts. Before it, replicas of two periods overlap for a cold start.
    """
    totals = {row.period or row.begins: sum(row.replicas) for row in rows}
    return (min(totals.values()), max(totals.values())) if totals else None


@dataclass(frozen=True, slots=True)
class Fact:
    """One effect of the recommendation, as words.

    ``of`` is its label in a list. ``before`` is the text before it in a sentence.
    """

    of: str
    words: str
    before: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The recommendation as text: ``what`` to do, its ``facts``, and both as one ``sentence``."""

    sentence: str
    timetable: ReplicaSchedule
    what: str
    facts: tuple[Fact, ...] = ()


def answer_of(study: Study, run: PolicyRun, base: PolicyRun) -> Answer:
    """Return the recommendation to run the policy of ``run``, with its savings against ``base``."""
    orders = _replica_orders(study, run)
    what = _action_sentence(study, orders, run.label, run.traits)
    mean_replicas = run.series.ready.sum(axis=0).mean()
    spare = study.settings.plan.spare
    lost = loss_words(spare) if spare else "one replica"
    parts = (
        Fact("Fleet", "" if run.traits.flat else f"{mean_replicas:,.1f} replicas on average"),
        Fact("Cost", _money(study, run) + cost_difference_words(run, base, usd=False)),
        Fact("Growth", _growth_words(study)),
        Fact("Above a limit", _limits_exceeded(study, run), "above a limit: "),
        Fact("SLO attainment", _attainment_words(run, study.window.ahead), "SLO attainment "),
        Fact(
            f"Survives the loss of {lost}",
            _survives_loss_words(run),
            f"survives the loss of {lost}: ",
        ),
    )
    facts = tuple(fact for fact in parts if fact.words)
    sentence = "; ".join([what, *(f"{fact.before}{fact.words}" for fact in facts)])
    missed = f"{missed_tiers_sentence(run)} " if missed_tiers_sentence(run) else ""
    timetable = _schedule(study, orders)
    return Answer(f"{missed}{sentence}.", timetable, f"{missed}{what}.", facts)


def plan_answer(study: Study, plan: ScalingPlan, policy: str) -> Answer:
    """Return a ``plan`` under ``policy`` as a recommendation, without its cost and attainment."""
    orders, traits = _orders_of_plan(study, plan), traits_of(policy)
    words = _action_sentence(study, orders, traits.label, traits)
    return Answer(words, _schedule(study, orders), f"{words}.")


def schedules_table(study: Study, runs: Sequence[PolicyRun]) -> pl.DataFrame:
    """Return the schedules of all policies: one row per change and pool that is ever used.

    Policies that scale by their own rule have no rows.
    """
    schedules = [(run, _schedule(study, _replica_orders(study, run))) for run in runs]
    rows = [
        {
            "policy": run.name,
            "begins": row.begins,
            "period": row.period,
            "model": pool.replica.model,
            "region": pool.region,
            **{name: getattr(pool.replica, name) for name in REPLICA},
            "replicas": count,
        }
        for run, timetable in schedules
        if not timetable.by_itself
        for row in timetable.rows
        for pool, count in zip(timetable.pools, row.replicas, strict=True)
    ]
    return pl.DataFrame(rows)


def schedule_tables(timetable: ReplicaSchedule | None) -> dict[str, pl.DataFrame]:
    """Return the table named ``timetable``: one row per change, one column of replicas per pool.

    Return no table if the schedule is empty or None.
    """
    if timetable is None or not timetable.pools:
        return {}
    columns: dict[str, Sequence[datetime | None] | Sequence[int]] = {
        "begins": [row.begins for row in timetable.rows],
        "period": [row.period for row in timetable.rows],
    }
    for p, pool in enumerate(timetable.pools):
        head = f"{pool.replica.model} {pool.region} {pool.replica.arrangement}"
        columns[head] = [row.replicas[p] for row in timetable.rows]
    return {"timetable": pl.DataFrame(columns)}


@dataclass(frozen=True, slots=True, eq=False)
class _ReplicaOrders:
    """Replicas to request: ``counts [t, pools]`` from ``begins_s [t]`` on, epoch seconds.

    ``periods_s [t]`` is the start of the latest period that they are requested for. If
    ``scales_itself``, the policy scales by its own rule after the first row.
    """

    begins_s: FloatArray
    periods_s: FloatArray
    counts: IntArray
    scales_itself: bool = False


def _replica_orders(study: Study, run: PolicyRun) -> _ReplicaOrders:
    """Return the replicas to request over time: those of the run's plan, else its first fleet."""
    if run.plan is not None:
        return _orders_of_plan(study, run.plan)
    initial = np.zeros((1, *study.hardware.minimum.shape), np.int64)
    for index, pool in zip(study.hardware.pool_index, run.fleet.pools, strict=False):
        initial[0, *index] = pool.initial
    constant = replace(study.window, period_s=study.window.duration_s)
    times, periods, counts = requests_over_time(initial, constant)
    # A guard only adds to its first fleet.
    keeps_first = run.traits.flat or run.traits.may_exceed_plan
    return _ReplicaOrders(times, periods, study.pools(counts), scales_itself=not keeps_first)


def _orders_of_plan(study: Study, plan: ScalingPlan) -> _ReplicaOrders:
    """Return the replicas that a plan asks for over time."""
    times, periods, counts = requests_over_time(plan.target, study.window)
    return _ReplicaOrders(times, periods, study.pools(counts))


def _schedule(study: Study, orders: _ReplicaOrders) -> ReplicaSchedule:
    """Return the orders as a schedule: one row per change, only pools that are ever used."""
    counts, hardware = orders.counts, study.hardware
    used = [p for p in range(counts.shape[1]) if counts[:, p].any()]
    places = [hardware.pool_index[p] for p in used]
    changed = np.r_[True, (np.diff(counts, axis=0) != 0).any(axis=1)]  # rows unlike the one before
    return ReplicaSchedule(
        pools=tuple(
            Pool(hardware.regions[r].name, replica_of(hardware, m, g)) for m, r, g in places
        ),
        rows=tuple(
            ScheduleRow(
                moment(orders.begins_s[t]),
                tuple(int(counts[t, p]) for p in used),
                moment(orders.periods_s[t]),
            )
            for t in np.flatnonzero(changed).tolist()
        ),
        by_itself=orders.scales_itself,
    )


def _action_sentence(study: Study, orders: _ReplicaOrders, label: str, traits: Traits) -> str:
    """Return what to run, as a sentence without its full stop.

    ``label`` and ``traits`` are those of the policy.
    """
    start_s, clock, counts = study.window.start_s, study.traffic.clock, orders.counts
    first = _counts_words(study, counts[0])
    utc = " UTC" if clock == "utc" else ""
    begins = f"from {time_words(start_s)}{utc} on {day_words(start_s, clock)}"
    if orders.scales_itself:
        return f"Run {first or 'nothing'} {begins}, and let {label} scale from there"
    if traits.flat:
        return f"Run a flat fleet, {first or 'of nothing'}, {begins}, all the time"
    how_long = "all the time"
    span = span_of(_schedule(study, orders).rows)
    if (counts != counts[0]).any() and span is not None:
        how_long = f"then by the schedule ({span[0]:,} to {span[1]:,})"
    guard_words = ", and more if load exceeds the plan" if traits.may_exceed_plan else ""
    return f"Run {first or 'nothing'} {begins}, {how_long}{guard_words}"


def _counts_words(study: Study, counts: IntArray) -> str:
    """Return replicas ``counts [pools]`` in words, by model and region; "" if all are 0.

    The GPU type is named if the model can run on several.
    """
    hardware = study.hardware
    columns: dict[int, set[int]] = {}  # GPU columns by model
    for m, _, g in hardware.pool_index:
        columns.setdefault(m, set()).add(g)
    by_model: dict[str, list[str]] = {}
    for count, (m, r, g) in zip(counts, hardware.pool_index, strict=True):
        if count:
            on_gpu = f" of {hardware.columns[g].label}" if len(columns[m]) > 1 else ""
            words = f"{count:,} in {hardware.regions[r].name}{on_gpu}"
            by_model.setdefault(hardware.models[m].name, []).append(words)
    return "; ".join(f"{model}: {', '.join(parts)}" for model, parts in by_model.items())


def _money(study: Study, run: PolicyRun) -> str:
    """Return the cost of a day and of a month of such days, in words."""
    day = run.summary.recurring_usd * DAY_S / study.window.duration_s
    if study.window.duration_s < DAY_S:
        return (
            f"${_dollars(day)} a day at this window's rate (${_short_dollars(MONTH * day)} a month)"
        )
    return f"${_dollars(day)} a day (${_short_dollars(MONTH * day)} a month of such days)"


def _dollars(usd: float) -> str:
    """Return dollars without a sign, with cents below 100."""
    return f"{usd:,.0f}" if usd >= 100 else f"{usd:,.2f}"


def _short_dollars(usd: float) -> str:
    """Return dollars without a sign, in three digits, such as 53.4k."""
    for size, suffix in ((1e9, "bn"), (1e6, "M"), (1e3, "k")):
        if usd >= size:
            return f"{usd / size:.3g}{suffix}"
    return f"{usd:,.0f}"


def _limits_exceeded(study: Study, run: PolicyRun) -> str:
    """Return the scenario's limits that the replay exceeds, in words; "" if there are none.

    Checked are the dollars per hour of the dearest period, and the totals of the window.
    """
    limits = study.settings.plan
    limited = (
        ("$", " an hour", _highest_hourly_cost(study, run), limits.each_hour.usd),
        ("$", " in this window", run.summary.cost_usd, limits.in_all.usd),
        ("", " kg CO2e in this window", run.summary.carbon_kg, limits.in_all.carbon_kg),
    )
    return "; ".join(
        f"{sign}{_dollars(taken)}{unit} where {sign}{_dollars(limit)} is the most"
        for sign, unit, taken, limit in limited
        if taken > limit * (1 + ABOUT)
    )


def _highest_hourly_cost(study: Study, run: PolicyRun) -> float:
    """Return dollars per hour in the dearest period; 0 if the scenario sets no such limit."""
    if study.settings.plan.each_hour.usd == np.inf:
        return 0.0
    series = run.series
    counts = series.ready + series.starting + series.draining
    hours = hours_of(counts.shape[1], study.window.start_s, series.interval_s)
    usd = np.stack([
        (pool.usd_per_gpu_hour + pool.usd_above_mean[hours]) * pool.gpus_per_instance
        for pool in run.fleet.pools
    ])  # fmt: skip
    hourly = (usd * counts).sum(axis=0)  # by interval
    period = (np.arange(len(hourly)) * series.interval_s // study.window.period_s).astype(np.int64)
    means = np.bincount(period, hourly) / np.bincount(period)
    return float(means.max())


def _growth_words(study: Study) -> str:
    """Return the growth that a plan ahead of the traffic assumes, in words; "" without any."""
    window = study.window
    return f"for {window.growth.words} of the forecast" if window.ahead and window.growth else ""


def _attainment_words(run: PolicyRun, ahead: bool) -> str:
    """Return each tier's SLO attainment and target, in words.

    ``ahead``: the window is in the future, so that demand is a forecast.
    """
    targets = {tier.name: tier.attainment for tier in run.fleet.tiers}
    parts = [
        f"{percent(share)} of {tier} (target {100 * targets[tier]:.4g}%)"
        for tier, share in run.summary.slo_attainment.items()
        if share is not None
    ]
    condition = " if demand is as forecast" if ahead else ""  # requests are drawn around its mean
    return f"{', '.join(parts)}{condition}" if parts else ""


def missed_tiers_sentence(run: PolicyRun) -> str:
    """Return a sentence on the tiers that the run misses in the window; empty if none."""
    missed = missed_tiers(run)
    return f"{run.label} misses in this window: {'; '.join(missed)}." if missed else ""


def _survives_loss_words(run: PolicyRun) -> str:
    """Return whether the run survives a replica loss, in words; "" if unknown."""
    if run.n_plus_1 is None:
        return ""
    words = "yes" if run.n_plus_1 else "no"
    return words if run.survives is None else f"{words} (SLO attainment {run.survives:.1%})"
