"""Compare active plans with the traffic that came and the measured speed of replicas.

An outcome is the comparison for one period in which a plan was active: its dates, or a week.

    due period -> outcome: running -> done | failed
"""

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import polars as pl
from django.db import IntegrityError, transaction
from django.urls import reverse

from forecasting.demand import SeriesKey
from planner.domain.outcome import Inputs
from planner.domain.progress import Progress, silent
from planner.domain.retrospective.drift import speeds_now
from planner.domain.retrospective.evaluation import Forecast, evaluate_plan
from planner.domain.retrospective.figures import (
    ForecastBin,
    JudgedSpeed,
    PlanEvaluation,
    RequestedPool,
    SpeedKey,
)
from planner.domain.serialise import as_json, from_json
from planner.errors import EXPECTED
from planner.inputs.live.replica_speed import ServedSpeed, served_speeds
from planner.inputs.scenario import document as text
from planner.models import ActivePlan, Outcome, Run, Source, Trace
from planner.models.notification import Event
from planner.models.workspace import current_workspace, use_workspace
from planner.outputs.metrics import replicas_lookup
from planner.outputs.stored_pools import pools_of
from planner.selectors.run_hardware import stored_hardware
from planner.selectors.runs import run_table, run_tables
from planner.services import kernel_compilation
from planner.services.execution import stored_traces
from planner.services.notifications import notify
from planner.services.sources import FILE_PREFIX, current_trace, source_series

logger = logging.getLogger(__name__)

HOUR, WEEK = timedelta(hours=1), timedelta(days=7)
STALE_AFTER = timedelta(hours=2)  # a worker that takes longer is taken for dead
MAX_PLANS = 1000  # newest plans that are examined
JUDGED_TIME = timedelta(days=1)  # speeds of this time are compared with the plan's
# A drift ends when iteration times differ from the plan's by less than this share (assumed).
RECOVERED_WITHIN = 0.025
READ_EVERY = timedelta(minutes=1)  # the time resolution of a plan's replicas


class Period(NamedTuple):
    """A time in which a plan was active."""

    begins: datetime
    ends: datetime


def outcomes_tick(*, now: datetime, limit: int = 1, progress: Progress = silent) -> list[Outcome]:
    """Compute the outcome of up to ``limit`` due periods of active plans, the earliest first."""
    # Without the row of a dead worker, the period is due again.
    Outcome.objects.filter(state=Outcome.State.RUNNING, started_at__lt=now - STALE_AFTER).delete()
    judged: list[Outcome] = []
    for plan, (begins, ends) in due_periods(now):
        if len(judged) == limit:
            break
        outcome = outcome_judge(plan=plan, begins=begins, ends=ends, now=now, progress=progress)
        if outcome is not None:
            judged.append(outcome)
    return judged


def due_periods(now: datetime) -> list[tuple[ActivePlan, Period]]:
    """Return each plan and period that is over, has known traffic and no outcome, by its end."""
    done = set(Outcome.objects.values_list("plan_id", "begins"))
    due: list[tuple[ActivePlan, Period]] = []
    for plan in ActivePlan.objects.select_related("run")[:MAX_PLANS]:
        periods = [
            period for period in active_periods(plan, now) if (plan.pk, period.begins) not in done
        ]
        known_until = end_of_traffic(plan.run) if periods and plan.run else None
        if known_until is not None:
            # The last bin may be missing from the traffic, and is at most an hour long.
            due += [(plan, period) for period in periods if period.ends - HOUR < known_until]

    def period_end(plan_period: tuple[ActivePlan, Period]) -> datetime:
        """Return the end of the period."""
        _, period = plan_period
        return period.ends

    return sorted(due, key=period_end)


def active_periods(plan: ActivePlan, now: datetime) -> Iterator[Period]:
    """Yield the past periods in which a plan was active, in whole hours.

    A plan for certain dates has one period: the part of the dates in which it was active, or all of
    them if they were over at its activation. A repeating plan has one period per week, and one for
    the rest when it ends.
    """
    if plan.repeat == "once" and plan.ends <= plan.since:
        yield Period(plan.begins, plan.ends)
        return
    until = min(plan.until or now, now)  # of the time in which it was active so far
    if plan.repeat == "once":
        begins = max(plan.begins, _start_of_hour(plan.since))
        ends = min(plan.ends, _start_of_hour(until))
        is_over = plan.until is not None or now >= plan.ends
        if is_over and ends - begins >= HOUR:
            yield Period(begins, ends)
        return
    begins = _start_of_hour(plan.since)
    while begins + WEEK <= until:
        yield Period(begins, begins + WEEK)
        begins += WEEK
    if plan.until is not None and _start_of_hour(until) - begins >= HOUR:
        yield Period(begins, _start_of_hour(until))


def outcome_judge(
    *, plan: ActivePlan, begins: datetime, ends: datetime, now: datetime, progress: Progress
) -> Outcome | None:
    """Compute and store the outcome of a plan in a period; notify people of a drift or a miss.

    None if another worker computes it.
    """
    outcome = Outcome(plan=plan, begins=begins, ends=ends, started_at=now)
    try:
        with transaction.atomic():
            outcome.save()
    except IntegrityError:
        return None
    try:
        evaluation = _evaluate(plan, begins, ends, progress)
        outcome.state, outcome.words = Outcome.State.DONE, evaluation.sentence
        outcome.figures = as_json(evaluation)
    except EXPECTED as problem:
        outcome.state, outcome.words = Outcome.State.FAILED, str(problem)
    except Exception as bug:
        logger.exception("outcome of plan %s from %s", plan.pk, begins)
        outcome.state = Outcome.State.FAILED
        outcome.words = (
            f"An error of the program stopped this ({type(bug).__name__}); its details are in the "
            "log."
        )
    outcome.save()
    figures = outcome.figures
    drifts = [*figures.get("lengths", ()), *figures.get("speed", ())]
    if any(drift["flagged"] for drift in drifts) or not all(figures.get("met", {}).values()):
        notify(current_workspace(), Event.DRIFT, outcome.words, f"/outcomes/{outcome.pk}/")
    return outcome


def _evaluate(
    plan: ActivePlan, begins: datetime, ends: datetime, progress: Progress
) -> PlanEvaluation:
    """Return the comparison of ``plan`` with the traffic that came from ``begins`` to ``ends``.

    The plan's scenario is simulated over this period. Snapshots of live sources are replaced by
    their growing traces, and a forecast growth of the traffic is left out.
    """
    kernel_compilation.wait_until_compiled(progress)
    assert plan.run is not None
    outline = text.outline(plan.run.document)
    changes: dict[str, object] = {
        "traffic.until": None,
        "horizon.start": begins.astimezone(UTC).isoformat(),
        "horizon.duration_s": (ends - begins).total_seconds(),
    }
    if "growth" in outline["traffic"]:
        changes["traffic.growth"] = None
    for index, source in enumerate(outline["traffic"]["sources"]):
        if source.get("trace") is not None:
            changes[f"traffic.sources[{index}].trace"] = live_trace_name(source["trace"])
    document = text.edit(plan.run.document, changes)
    scenario = text.parse(document, plan.scenario)
    inputs = Inputs(scenario, stored_traces(scenario), stored_hardware(plan.run.resolved))
    return evaluate_plan(
        inputs,
        planned_pools(plan, begins, ends),
        _forecast_of(plan.run),
        progress,
        served=observed_speeds(plan.run, begins, ends),
    )


def end_of_traffic(run: Run) -> datetime | None:
    """Return the time until which all traces of a run have traffic; None if that is unknown."""
    ends = []
    for source in text.outline(run.document)["traffic"]["sources"]:
        if source.get("trace") is None:
            continue
        trace = Trace.objects.filter(name=live_trace_name(source["trace"])).first()
        if trace is None or trace.end_at is None:
            return None
        ends.append(trace.end_at)
    return min(ends, default=None)


def _forecast_of(run: Run) -> Forecast:
    """Return a run's forecast for each series and start of a time bin; {} if it stored none."""
    if "forecast" not in run_tables(run):
        return {}
    forecast = {}
    for row in run_table(run, "forecast").to_dicts():
        series = SeriesKey(row["model"], row["region"], row["tier"])
        start_s = row["time"].timestamp()
        forecast[series, start_s] = ForecastBin(row["mean"], row["planned"])
    return forecast


def _start_of_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def speeds_judge(*, source_id: int) -> list[JudgedSpeed]:
    """Compare the speed of replicas that a live source measured with the profiles of active plans.

    Only plans whose scenario has traffic of the source count. Stores the comparisons with the
    source, and returns them. People are notified once of a drift, however long it lasts and even if
    another plan follows.
    """
    source = Source.everywhere.select_related("workspace").get(pk=source_id)
    with use_workspace(source.workspace):
        stored_speeds = [from_json(JudgedSpeed, row) for row in source.speed]
        stored = {speed.key: speed for speed in stored_speeds}
        judged: dict[SpeedKey, JudgedSpeed] = {}
        plans = ActivePlan.objects.filter(until=None).exclude(run=None).select_related("run")
        for plan in plans:
            try:
                plan_speeds = _speeds_of_plan(plan, source)
            except EXPECTED as problem:  # its scenario can no longer be built
                logger.warning("speed of %s by %s: %s", plan, source.name, problem)
                continue
            for speed in plan_speeds:
                was_notified = speed.key in stored and stored[speed.key].told
                judged[speed.key] = _notified_speed(speed, source, was_notified)
        # Comparisons that failed now keep their earlier result.
        active_scenarios = {plan.scenario for plan in plans}
        speeds = [
            speed for speed in (stored | judged).values() if speed.scenario in active_scenarios
        ]
        Source.objects.filter(pk=source.pk).update(speed=as_json(speeds))
    return speeds


def _notified_speed(speed: JudgedSpeed, source: Source, was_notified: bool) -> JudgedSpeed:
    """Notify people of a new drift; return the speed, with whether they know of a drift of it."""
    drift = speed.drift
    has_recovered = abs(drift.times - 1) <= RECOVERED_WITHIN or drift.low <= 1 <= drift.high
    if drift.flagged and not was_notified:
        words = f"Live source {source.name}, plan of {speed.scenario}: {drift.sentence}."
        notify(source.workspace, Event.DRIFT, words, reverse("web:source", args=[source.name]))
    return replace(speed, told=drift.flagged or (was_notified and not has_recovered))


def _speeds_of_plan(plan: ActivePlan, source: Source) -> list[JudgedSpeed]:
    """Return the measured speeds of a plan's replicas, compared with the plan's profiles.

    They are measured in the last JUDGED_TIME, from the activation of the plan on. [] if a source
    measured nothing in that time.
    """
    run, trace = plan.run, source.trace
    if run is None or trace is None or trace.end_at is None:
        return []
    until = trace.end_at.astimezone(UTC)
    begins = max(plan.since, until - JUDGED_TIME)
    if plan.repeat == "once":
        begins, until = max(begins, plan.begins), min(until, plan.ends)
    served = observed_speeds(run, begins, until, source) if begins < until else []
    if not served:
        return []
    drifts = speeds_now(
        text.parse(run.document, plan.scenario),
        stored_hardware(run.resolved),
        planned_pools(plan, begins, until),
        served,
        begins.timestamp(),
        until.timestamp(),
    )
    return [JudgedSpeed(drift, plan.scenario, plan.number, until) for drift in drifts]


def live_trace_name(name: str) -> str:
    """Return the name of a live source's growing trace if ``name`` is a snapshot of that trace.

    Otherwise return ``name``.
    """
    trace = Trace.objects.filter(name=name).first()
    if trace is None or not trace.sha256 or not trace.file_name.startswith(FILE_PREFIX):
        return name
    source = Source.objects.filter(name=trace.file_name.removeprefix(FILE_PREFIX)).first()
    return current_trace(source).name if source else name


def planned_pools(plan: ActivePlan, begins: datetime, ends: datetime) -> list[RequestedPool]:
    """Return the replicas that ``plan`` has from ``begins`` to ``ends``, by pool.

    Each pool has the times (epoch seconds) at which its number of replicas changes.
    """
    zone = ZoneInfo(plan.zone)
    count = max(1, (ends - begins) // READ_EVERY)
    moments = [begins + i * READ_EVERY for i in range(count)]
    times_s = np.array([moment.timestamp() for moment in moments])
    plan_times = [moment.astimezone(zone).replace(tzinfo=None) for moment in moments]
    pools = []
    for pool in pools_of(plan):
        replicas_at_time = replicas_lookup(plan, pool)
        replicas = np.array([replicas_at_time(moment) or 0 for moment in plan_times], np.int64)
        # The times at which the count changes. The first one counts as a change from -1.
        changes = np.flatnonzero(np.diff(replicas, prepend=-1))
        pools.append(
            RequestedPool(
                model=pool.model,
                region=pool.region,
                gpu=pool.gpu,
                tp=pool.gpus,
                role=pool.role,
                market=pool.market,
                arrangement=pool.arrangement,
                times_s=times_s[changes],
                replicas=replicas[changes],
            )
        )
    return pools


def observed_speeds(
    run: Run, begins: datetime, ends: datetime, only_source: Source | None = None
) -> list[ServedSpeed]:
    """Return the speeds of replicas that live sources measured, by the scenario's names.

    Sources are those whose trace the scenario of ``run`` names, or ``only_source`` among them.
    """
    by_source: dict[tuple[str, str, str], ServedSpeed] = {}
    for traffic_source in text.outline(run.document)["traffic"]["sources"]:
        name = live_trace_name(traffic_source.get("trace") or "")
        source = Source.objects.filter(trace__name=name).first()
        if source is None or only_source not in (None, source):
            continue
        bins = source_series(source).bins(ends.timestamp(), begins.timestamp())
        if traffic_source.get("series"):
            bins = bins.filter(pl.col("model") == traffic_source["series"])
        regions = list(traffic_source.get("regions") or ())
        for served in served_speeds(bins, source.bin_s):
            region = served.region or (regions[0] if len(regions) == 1 else "")
            # The first entry of the traffic that names a measured model gives it its name.
            named = replace(
                served, model=traffic_source.get("model") or served.model, region=region
            )
            by_source.setdefault((source.name, served.model, region), named)
    return list(by_source.values())
