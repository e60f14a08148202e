"""What each kind of run does: rows in, one call of the pipeline, tables kept, figures returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

from planner import storage
from planner.errors import NotReady, RunCancelled, ScenarioError
from planner.models import Run, Trace
from planner.scenario.document import parse
from planner.scenario.known import Known
from planner.scenario.schema import Forecast, Scenario
from planner.selectors.traces import trace_ready
from planner.services import traces
from planner.services.provisioning import asked_of
from planner.services.resolution import known_of
from planner.studies.commands import (
    compare,
    forecast,
    pareto,
    pd_ratio,
    place,
    plan,
    provision,
    simulate,
    size,
)
from planner.studies.outcome import Outcome, Traces
from planner.studies.progress import Progress
from planner.studies.traffic.series import trace_series
from planner.studies.traffic.sources import StoredTrace

Options = dict[str, Any]
RUNS = "runs"
OF_OBJECTIVE = ("solver", "gap", "time_limit_s", "minimise", "periods")


def run_body(*, run: Run, progress: Progress) -> dict[str, Any]:
    """Carry out a claimed run; returns its result document and keeps its tables."""
    if run.kind == Run.Kind.INGEST:
        return traces.trace_ingest_upload(run=run, progress=progress)
    outcome = _outcome(run, progress)
    store = f"{RUNS}/{run.pk}"
    mine = Run.objects.filter(pk=run.pk, state=Run.State.RUNNING, attempts=run.attempts)
    if not mine.update(store=store):
        raise RunCancelled  # taken up by another worker, whose tables lie there
    storage.remove(store)
    storage.tables_write(store, outcome.tables)
    return {**outcome.document, "run": run.pk}


def _outcome(run: Run, progress: Progress) -> Outcome:
    options = run.options
    if run.kind == Run.Kind.FORECAST and run.trace is not None:
        return forecast.run_series(
            trace_series(_trace_ready(run.trace), float(options.get("bin_s", 900))),
            horizon_s=float(options.get("horizon_s", 3600)),
            method=options.get("method", "auto"),
            origins=int(options.get("origins", 0)),
            progress=progress,
        )
    scenario = with_options(parse(run.document, run.name or "scenario"), options)
    stored = stored_traces(scenario)
    known = known_of(run.resolved)
    body = BODIES.get(run.kind)
    if body is None:
        raise ScenarioError(f"A {run.get_kind_display()} run cannot be made of a scenario.")
    return body(scenario, stored, options, known, progress)


def _forecast(
    scenario: Scenario, stored: Traces, options: Options, known: Known, progress: Progress
) -> Outcome:
    return forecast.run(scenario, stored, known=known, progress=progress)


def _plan(
    scenario: Scenario, stored: Traces, options: Options, known: Known, progress: Progress
) -> Outcome:
    return plan.run(
        scenario,
        stored,
        verified=bool(options.get("verify")),
        known=known,
        progress=progress,
    )


def _simulate(
    scenario: Scenario, stored: Traces, options: Options, known: Known, progress: Progress
) -> Outcome:
    policy = options.get("policy", "lt-i")
    return simulate.run(
        scenario,
        stored,
        policy=policy,
        seed=options.get("seed"),
        requests=bool(options.get("requests")),
        known=known,
        progress=progress,
    )


def _compare(
    scenario: Scenario, stored: Traces, options: Options, known: Known, progress: Progress
) -> Outcome:
    return compare.run(
        scenario,
        stored,
        policies=options.get("policies", ()),
        seed=options.get("seed"),
        known=known,
        progress=progress,
    )


def _provision(
    scenario: Scenario, stored: Traces, options: Options, known: Known, progress: Progress
) -> Outcome:
    return provision.run(
        scenario,
        stored,
        asked=asked_of(options),
        known=known,
        progress=progress,
    )


def _place(
    scenario: Scenario, stored: Traces, options: Options, known: Known, progress: Progress
) -> Outcome:
    ratio = options.get("ratio")
    asked = ("method", "counts", "grow", "time_limit_s")
    return place.run(
        scenario,
        stored,
        **{name: options[name] for name in asked if name in options},
        ratio=None if ratio is None else (ratio[0], ratio[1]),
        known=known,
        progress=progress,
    )


def _size(
    scenario: Scenario, stored: Traces, options: Options, known: Known, progress: Progress
) -> Outcome:
    return size.run(
        scenario,
        stored,
        isl=options.get("isl"),
        osl=options.get("osl"),
        burstiness=str(options.get("burstiness", "poisson")),
        known=known,
        progress=progress,
    )


def _pd_ratio(
    scenario: Scenario, stored: Traces, options: Options, known: Known, progress: Progress
) -> Outcome:
    names = ("instances", "prefill", "decode")
    return pd_ratio.run(
        scenario,
        stored,
        service=options.get("service", scenario.models[0].name),
        **{name: options[name] for name in names if options.get(name) is not None},
        known=known,
        progress=progress,
    )


def _pareto(
    scenario: Scenario, stored: Traces, options: Options, known: Known, progress: Progress
) -> Outcome:
    names = ("of", "points")
    return pareto.run(
        scenario,
        stored,
        **{name: options[name] for name in names if name in options},
        known=known,
        progress=progress,
    )


# What a run of each kind does with a scenario, its traces and the run's options.
BODIES: dict[str, Callable[[Scenario, Traces, Options, Known, Progress], Outcome]] = {
    Run.Kind.FORECAST: _forecast,
    Run.Kind.PLAN: _plan,
    Run.Kind.SIMULATE: _simulate,
    Run.Kind.COMPARE: _compare,
    Run.Kind.PROVISION: _provision,
    Run.Kind.PLACE: _place,
    Run.Kind.SIZE: _size,
    Run.Kind.PD_RATIO: _pd_ratio,
    Run.Kind.PARETO: _pareto,
}


def with_options(scenario: Scenario, options: dict[str, Any]) -> Scenario:
    """The scenario with a run's own solver, gap, time limit and forecast method."""
    objective = {k: options[k] for k in OF_OBJECTIVE if k in options}
    methods = get_args(Forecast.model_fields["method"].annotation)  # provisioning has its own
    method = {"method": options["method"]} if options.get("method") in methods else {}
    return Scenario.model_validate(
        scenario.model_dump()
        | {"objective": scenario.objective.model_dump() | objective}
        | {"forecast": scenario.forecast.model_dump() | method}
    )


def stored_traces(scenario: Scenario) -> dict[str, StoredTrace]:
    """The traces a scenario names, ready to be read; raises with the line's field where not."""
    found: dict[str, StoredTrace] = {}
    for index, source in enumerate(scenario.traffic.sources):
        if source.trace is None:
            raise ScenarioError(
                f"traffic.sources[{index}].file: paths are for the command line; upload the file "
                "and name it under trace instead."
            )
        found[source.trace] = stored_trace(trace_ready(source.trace))
    return found


def stored_trace(trace: Trace) -> StoredTrace:
    return StoredTrace(
        name=trace.name,
        kind=trace.kind,
        clock=trace.report.get("clock", "utc"),
        store=storage.folder(trace.store),
    )


def _trace_ready(trace: Trace) -> StoredTrace:
    if trace.state != Trace.State.READY:
        raise NotReady(f"Trace {trace.name} is not ready: {trace.problem or 'it is being read'}")
    return stored_trace(trace)
