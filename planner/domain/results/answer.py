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

DAY_S = 86_400.0
MONTH_DAYS = 30
LIMIT_TOLERANCE = 0.01  # overlapping starts cost a little more than planned


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool of a replica schedule: its region and its kind of replica."""

    region: str
    replica: Replica


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """The replicas to request of each pool from ``begins`` until the next row.

    They serve in the period that starts at ``period``. It is None in results of earlier releases,
    where ``begins`` is the start of the period.
    """

    begins: datetime
    replicas: tuple[int, ...]
    period: datetime | None = None


@dataclass(frozen=True, slots=True)
class ReplicaSchedule:
    """A replica schedule: a row per change of the replicas to request, in the order of ``pools``.

    With ``by_itself``, it has one row, and the policy then scales by its own rule.
    """

    pools: tuple[Pool, ...]
    rows: tuple[ScheduleRow, ...]
    by_itself: bool


def span_of(rows: Iterable[ScheduleRow]) -> tuple[int, int] | None:
    """Return the (fewest, most) replicas of a period, over all periods; None without rows.

    The last row of a period counts. Before it, replicas of two periods overlap for a cold start.
    """
    totals = {row.period or row.begins: sum(row.replicas) for row in rows}
    return (min(totals.values()), max(totals.values())) if totals else None


@dataclass(frozen=True, slots=True)
class Fact:
    """One effect of the recommendation, such as its cost, in words.

    ``of`` is its label in a list, ``before`` the text before the words in a sentence.
    """

    of: str
    words: str
    before: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """The recommendation as text: ``what`` to do, its effects (``facts``), and both in a sentence.

    ``timetable`` is its replica schedule.
    """

    sentence: str
    timetable: ReplicaSchedule
    what: str
    facts: tuple[Fact, ...] = ()


def answer_of(study: Study, run: PolicyRun, base: PolicyRun) -> Answer:
    """Return the recommendation to run a simulated policy, with its savings against ``base``."""
    orders = _replica_orders(study, run)
    what = _action_sentence(study, orders, run.label, run.traits)
    mean_replicas = run.series.ready.sum(axis=0).mean()
    on_average = "" if run.traits.flat else f"{mean_replicas:,.1f} replicas on average"
    cost = _cost_words(study, run) + cost_difference_words(run, base, usd=False)
    spare = study.settings.plan.spare
    loss = loss_words(spare) if spare else "one replica"
    window = study.window
    growth = (
        f"for {window.growth.words} of the forecast"
        if window.after_traffic and window.growth
        else ""
    )
    # The third argument is the text before the words in a sentence.
    candidates = (
        Fact("Fleet", on_average),
        Fact("Cost", cost),
        Fact("Growth", growth),
        Fact("Above a limit", _limits_exceeded(study, run), "above a limit: "),
        Fact("SLO attainment", _attainment_words(run, window.after_traffic), "SLO attainment "),
        Fact(
            f"Survives the loss of {loss}",
            _survives_loss_words(run),
            f"survives the loss of {loss}: ",
        ),
    )
    facts = tuple(fact for fact in candidates if fact.words)  # the others do not apply
    sentence = "; ".join([what, *(f"{fact.before}{fact.words}" for fact in facts)])
    missed = missed_tiers_sentence(run)
    missed_first = f"{missed} " if missed else ""
    return Answer(
        sentence=f"{missed_first}{sentence}.",
        timetable=_schedule(study, orders),
        what=f"{missed_first}{what}.",
        facts=facts,
    )


def plan_answer(study: Study, plan: ScalingPlan, policy: str) -> Answer:
    """Return the recommendation to follow ``plan``, without its cost and attainment.

    ``policy`` is the key of the policy that follows it.
    """
    orders, traits = _orders_of_plan(study, plan), traits_of(policy)
    words = _action_sentence(study, orders, traits.label, traits)
    return Answer(words, _schedule(study, orders), f"{words}.")


def schedules_table(study: Study, runs: Sequence[PolicyRun]) -> pl.DataFrame:
    """Return a table of the schedules of all policies: a row per policy, change and used pool.

    Policies that scale by their own rule have no rows.
    """
    rows = []
    for run in runs:
        schedule = _schedule(study, _replica_orders(study, run))
        if schedule.by_itself:
            continue
        for change in schedule.rows:
            for pool, count in zip(schedule.pools, change.replicas, strict=True):
                row = {
                    "policy": run.name,
                    "begins": change.begins,
                    "period": change.period,
                    "model": pool.replica.model,
                    "region": pool.region,
                    **{name: getattr(pool.replica, name) for name in REPLICA},
                    "replicas": count,
                }
                rows.append(row)
    return pl.DataFrame(rows)


def schedule_tables(timetable: ReplicaSchedule | None) -> dict[str, pl.DataFrame]:
    """Return {"timetable": table}: a row per change, with a column of replicas per pool.

    Return {} if the schedule is empty or None.
    """
    if timetable is None or not timetable.pools:
        return {}
    columns: dict[str, Sequence[datetime | None] | Sequence[int]] = {
        "begins": [row.begins for row in timetable.rows],
        "period": [row.period for row in timetable.rows],
    }
    for i, pool in enumerate(timetable.pools):
        name = f"{pool.replica.model} {pool.region} {pool.replica.arrangement}"
        columns[name] = [row.replicas[i] for row in timetable.rows]
    return {"timetable": pl.DataFrame(columns)}


@dataclass(frozen=True, slots=True, eq=False)
class _ReplicaOrders:
    """The replicas to request at each time t: ``counts [t, pools]``.

    They are requested at ``begins_s [t]``, for the period that starts at ``periods_s [t]``, both in
    epoch seconds. With ``scales_itself``, the policy scales by its own rule after the first time.
    """

    begins_s: FloatArray
    periods_s: FloatArray
    counts: IntArray
    scales_itself: bool = False


def _replica_orders(study: Study, run: PolicyRun) -> _ReplicaOrders:
    """Return the replicas that a policy requests over time, by its plan.

    Without a plan, they are the replicas that it starts with, in one period.
    """
    if run.plan is not None:
        return _orders_of_plan(study, run.plan)
    initial = np.zeros((1, *study.hardware.minimum.shape), np.int64)
    for index, pool in zip(study.hardware.model_region_gpu, run.fleet.pools, strict=False):
        initial[0, *index] = pool.initial
    one_period = replace(study.window, period_s=study.window.duration_s)
    times, periods, counts = requests_over_time(initial, one_period)
    # A guard never goes below its first replicas.
    keeps_first = run.traits.flat or run.traits.may_exceed_plan
    return _ReplicaOrders(
        times, periods, study.counts_by_pool(counts), scales_itself=not keeps_first
    )


def _orders_of_plan(study: Study, plan: ScalingPlan) -> _ReplicaOrders:
    """Return the replicas that a plan requests over time."""
    times, periods, counts = requests_over_time(plan.target, study.window)
    return _ReplicaOrders(times, periods, study.counts_by_pool(counts))


def _schedule(study: Study, orders: _ReplicaOrders) -> ReplicaSchedule:
    """Return a schedule with a row per change of the replicas to request.

    It has only the pools that are ever used.
    """
    hardware = study.hardware
    is_used = np.asarray(orders.counts.any(axis=0))  # [pool]
    pools = [
        Pool(hardware.regions[r].name, replica_of(hardware, m, g))
        for (m, r, g), used in zip(hardware.model_region_gpu, is_used, strict=True)
        if used
    ]
    rows: list[ScheduleRow] = []
    counts = orders.counts[:, is_used].tolist()
    for begins_s, period_s, replicas in zip(orders.begins_s, orders.periods_s, counts, strict=True):
        if not rows or rows[-1].replicas != tuple(replicas):
            rows.append(ScheduleRow(moment(begins_s), tuple(replicas), moment(period_s)))
    return ReplicaSchedule(tuple(pools), tuple(rows), by_itself=orders.scales_itself)


def _action_sentence(study: Study, orders: _ReplicaOrders, label: str, traits: Traits) -> str:
    """Return what to run, as a sentence without its full stop.

    ``orders`` are the replicas to request. ``label`` and ``traits`` are those of the policy.
    """
    start_s, clock = study.window.start_s, study.traffic.clock
    first = _counts_words(study, orders.counts[0])
    utc = " UTC" if clock == "utc" else ""
    begins = f"from {time_words(start_s)}{utc} on {day_words(start_s, clock)}"
    if orders.scales_itself:
        return f"Run {first or 'nothing'} {begins}, and let {label} scale from there"
    if traits.flat:
        return f"Run a static fleet, {first or 'of nothing'}, {begins}, all the time"
    how_long = "all the time"
    replicas = span_of(_schedule(study, orders).rows)
    if (orders.counts != orders.counts[0]).any() and replicas is not None:
        fewest, most = replicas
        how_long = f"then by the schedule ({fewest:,} to {most:,})"
    guard_words = ", and more if load exceeds the plan" if traits.may_exceed_plan else ""
    return f"Run {first or 'nothing'} {begins}, {how_long}{guard_words}"


def _counts_words(study: Study, counts: IntArray) -> str:
    """Return replicas ``counts [pools]`` in words, by model and region; "" if all are 0.

    The GPU type is named if the model can run on several.
    """
    hardware = study.hardware
    columns_of_model: dict[int, set[int]] = {}
    for m, _, g in hardware.model_region_gpu:
        columns_of_model.setdefault(m, set()).add(g)
    by_model: dict[str, list[str]] = {}
    for count, (m, r, g) in zip(counts, hardware.model_region_gpu, strict=True):
        if count:
            words = f"{count:,} in {hardware.regions[r].name}"
            if len(columns_of_model[m]) > 1:
                words += f" of {hardware.columns[g].label}"
            by_model.setdefault(hardware.models[m].name, []).append(words)
    return "; ".join(f"{model}: {', '.join(parts)}" for model, parts in by_model.items())


def _cost_words(study: Study, run: PolicyRun) -> str:
    """Return the cost of a day and of a month of such days, in words."""
    day_usd = run.summary.recurring_usd * DAY_S / study.window.duration_s
    day, month = _dollars(day_usd), _short_dollars(MONTH_DAYS * day_usd)
    if study.window.duration_s < DAY_S:
        return f"${day} a day at this window's rate (${month} a month)"
    return f"${day} a day (${month} a month of such days)"


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
    """Return the scenario's limits on cost and carbon that a simulation exceeds, in words.

    They apply to the cost per hour of the dearest period, and to the totals of the window. Return
    "" if none is exceeded.
    """
    limits = study.settings.plan
    # (sign before amounts, unit after, amount, its limit)
    limited = (
        ("$", " an hour", _highest_hourly_cost(study, run), limits.each_hour.usd),
        ("$", " in this window", run.summary.cost_usd, limits.in_all.usd),
        ("", " kg CO2e in this window", run.summary.carbon_kg, limits.in_all.carbon_kg),
    )
    return "; ".join(
        f"{sign}{_dollars(amount)}{unit} where {sign}{_dollars(limit)} is the most"
        for sign, unit, amount, limit in limited
        if amount > limit * (1 + LIMIT_TOLERANCE)
    )


def _highest_hourly_cost(study: Study, run: PolicyRun) -> float:
    """Return the dollars per hour of the dearest period; 0 if the scenario has no limit on them."""
    if study.settings.plan.each_hour.usd == np.inf:
        return 0.0
    series = run.series
    counts = series.ready + series.starting + series.draining
    hours = hours_of(counts.shape[1], study.window.start_s, series.interval_s)
    usd = np.stack([
        (pool.usd_per_gpu_hour + pool.usd_above_mean[hours]) * pool.gpus_per_instance
        for pool in run.fleet.pools
    ])  # fmt: skip
    hourly_usd = (usd * counts).sum(axis=0)  # by interval of the simulation
    starts_s = np.arange(len(hourly_usd)) * series.interval_s
    period = (starts_s // study.window.period_s).astype(np.int64)
    mean_of_period = np.bincount(period, hourly_usd) / np.bincount(period)
    return float(mean_of_period.max())


def _attainment_words(run: PolicyRun, after_traffic: bool) -> str:
    """Return each tier's SLO attainment and target in words; "" without requests.

    ``after_traffic``: the window is after the traffic, so its demand is a forecast.
    """
    targets = {tier.name: tier.attainment for tier in run.fleet.tiers}
    parts = [
        f"{percent(share)} of {tier} (target {100 * targets[tier]:.4g}%)"
        for tier, share in run.summary.slo_attainment.items()
        if share is not None
    ]
    condition = (
        " if demand is as forecast" if after_traffic else ""
    )  # requests are drawn around its mean
    return f"{', '.join(parts)}{condition}" if parts else ""


def missed_tiers_sentence(run: PolicyRun) -> str:
    """Return a sentence on the tiers whose SLO the run misses in the window; "" if none."""
    missed = missed_tiers(run)
    return f"{run.label} misses in this window: {'; '.join(missed)}." if missed else ""


def _survives_loss_words(run: PolicyRun) -> str:
    """Return whether the run meets its SLOs without a replica, in words; "" if unknown."""
    if run.n_plus_1 is None:
        return ""
    words = "yes" if run.n_plus_1 else "no"
    return words if run.survives is None else f"{words} (SLO attainment {run.survives:.1%})"
