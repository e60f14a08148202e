"""Compare plans that were active with the traffic that came, once it is known.

stretch of a plan -> running -> done | failed
"""

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from django.db import IntegrityError, transaction

from forecasting.demand import SeriesKey
from planner.domain.progress import Progress, silent
from planner.domain.retrospective.evaluation import Forecast, evaluate_plan
from planner.domain.retrospective.figures import ForecastBin
from planner.domain.serialise import as_json
from planner.errors import EXPECTED
from planner.inputs.scenario import document as text
from planner.models import ActivePlan, Outcome, Run, Trace
from planner.models.notification import Event
from planner.models.workspace import current_workspace
from planner.selectors.run_hardware import stored_hardware
from planner.selectors.runs import run_table, run_tables
from planner.services import kernel_compilation
from planner.services.execution import stored_traces
from planner.services.notifications import notify
from planner.services.observed_traffic import live_trace_name, observed_speeds, planned_pools

logger = logging.getLogger(__name__)

HOUR, WEEK = timedelta(hours=1), timedelta(days=7)
STALE_AFTER = timedelta(hours=2)  # a worker that takes longer is taken for dead
MAX_PLANS = 1000  # newest plans that are examined
Period = tuple[datetime, datetime]


def outcomes_tick(*, now: datetime, limit: int = 1, progress: Progress = silent) -> list[Outcome]:
    """Compute the outcome of up to ``limit`` due periods of active plans, the earliest first."""
    # Without the row of a dead worker, the stretch is due again.
    Outcome.objects.filter(state=Outcome.State.RUNNING, started_at__lt=now - STALE_AFTER).delete()
    judged: list[Outcome] = []
    for plan, (begins, ends) in due_periods(now):
        if len(judged) == limit:
            break
        outcome = outcome_judge(plan=plan, begins=begins, ends=ends, now=now, progress=progress)
        judged += [outcome] if outcome else []
    return judged


def due_periods(now: datetime) -> list[tuple[ActivePlan, Period]]:
    """Return the periods that are over, have known traffic, and have no outcome yet."""
    done = set(Outcome.objects.values_list("plan_id", "begins"))
    waiting = []
    for plan in ActivePlan.objects.select_related("run")[:MAX_PLANS]:
        open_periods = [
            period for period in active_periods(plan, now) if (plan.pk, period[0]) not in done
        ]
        known_until = traffic_known_until(plan.run) if open_periods and plan.run else None
        if known_until is not None:
            # The last bin may be missing from the traffic, and is at most an hour long.
            waiting += [(plan, period) for period in open_periods if period[1] - HOUR < known_until]
    return sorted(waiting, key=lambda due: due[1][1])  # by the end of the period


def active_periods(plan: ActivePlan, now: datetime) -> Iterator[Period]:
    """Yield the past periods in which a plan was active, in whole hours.

    A dated plan has one period: the part of its dates in which it was active. If its dates were
    already over at activation, the period is all of them. A repeating plan has one period per week.
    """
    if plan.repeat == "once" and plan.ends <= plan.since:
        yield plan.begins, plan.ends
        return
    until = min(plan.until or now, now)
    if plan.repeat == "once":
        begins, ends = max(plan.begins, _whole_hour(plan.since)), min(plan.ends, _whole_hour(until))
        over = plan.until is not None or now >= plan.ends
        if over and ends - begins >= HOUR:
            yield begins, ends
        return
    begins = _whole_hour(plan.since)
    while begins + WEEK <= until:
        yield begins, begins + WEEK
        begins += WEEK
    if plan.until is not None and _whole_hour(until) - begins >= HOUR:
        yield begins, _whole_hour(until)


def outcome_judge(
    *, plan: ActivePlan, begins: datetime, ends: datetime, now: datetime, progress: Progress
) -> Outcome | None:
    """Compute, store and notify a period's outcome of a plan; None if another worker does."""
    outcome = Outcome(plan=plan, begins=begins, ends=ends, started_at=now)
    try:
        with transaction.atomic():
            outcome.save()
    except IntegrityError:
        return None
    try:
        kernel_compilation.wait_until_compiled(progress)
        assert plan.run is not None
        scenario = text.parse(_scenario_document(plan.run, begins, ends), plan.scenario)
        judged = evaluate_plan(
            scenario,
            stored_traces(scenario),
            stored_hardware(plan.run.resolved),
            planned_pools(plan, begins, ends),
            _forecast_of(plan.run),
            progress,
            served=observed_speeds(plan.run, begins, ends),
        )
        outcome.state, outcome.words = Outcome.State.DONE, judged.sentence
        outcome.figures = as_json(judged)
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


def traffic_known_until(run: Run) -> datetime | None:
    """Return the time until which all traffic of a run is known; None if a trace is missing."""
    ends = []
    for source in text.outline(run.document)["traffic"]["sources"]:
        if source.get("trace") is None:
            continue
        trace = Trace.objects.filter(name=live_trace_name(source["trace"])).first()
        if trace is None or trace.end_at is None:
            return None
        ends.append(trace.end_at)
    return min(ends, default=None)


def _scenario_document(run: Run, begins: datetime, ends: datetime) -> str:
    """Return the plan's scenario, with the traffic that really came in the period."""
    outline = text.outline(run.document)
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
    return text.edit(run.document, changes)


def _forecast_of(run: Run) -> Forecast:
    """Return the forecast of a run for each time bin."""
    if "forecast" not in run_tables(run):
        return {}
    return {
        (SeriesKey(row["model"], row["region"], row["tier"]), row["time"].timestamp()): ForecastBin(
            row["mean"], row["planned"]
        )
        for row in run_table(run, "forecast").to_dicts()
    }


def _whole_hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
