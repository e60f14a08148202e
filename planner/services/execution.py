"""Execute each kind of run: read rows, call the pipeline, store tables, return figures."""

from functools import partial
from typing import Any

from planner.domain.kinds.forecast import TraceOptions, run_series
from planner.domain.kinds.registry import KINDS
from planner.domain.options import options_of
from planner.domain.outcome import Inputs, Outcome
from planner.domain.progress import Progress
from planner.domain.run_parts import Parts
from planner.domain.traffic.series import trace_series
from planner.domain.traffic.sources import StoredTrace
from planner.domain.whatif.plan_inputs import Basis, as_arrays, from_arrays
from planner.errors import RunCancelled, ScenarioError
from planner.inputs.scenario.document import parse
from planner.inputs.scenario.schema import Scenario
from planner.models import Run, Trace
from planner.selectors.run_hardware import stored_hardware
from planner.selectors.traces import ready_trace
from planner.services import traces
from planner.storage import row_arrays
from planner.storage.row_arrays import RUNS

BASIS = "basis"  # arrays that a plan was made from


def run_body(*, run: Run, progress: Progress, parts: Parts) -> dict[str, Any]:
    """Execute a claimed run, store its tables and return its result document.

    ``parts`` shares its computation among workers. Raises RunCancelled if another worker has taken
    the run over.
    """
    if run.kind == Run.Kind.INGEST:
        return traces.trace_ingest_upload(run=run, progress=progress)
    outcome = _run_pipeline(run, progress, parts)
    # Raises NothingToDo unless this worker leads the run: only the leader writes its tables.
    parts.close()
    store = store_of(run)
    own_row = Run.objects.filter(pk=run.pk, state=Run.State.RUNNING, attempts=run.attempts)
    if not own_row.update(store=store):
        raise RunCancelled  # another worker took the run up, and its tables are stored there
    row_arrays.remove(store)
    row_arrays.tables_write(store, outcome.tables)
    if outcome.basis is not None:
        row_arrays.arrays_write(store, BASIS, as_arrays(outcome.basis))
    row_arrays.keep(store)
    return {**outcome.document, "run": run.pk}


def store_of(run: Run) -> str:
    """Return the folder for the tables of the current attempt to execute a run.

    Attempts do not share a folder, because a worker that was taken for dead may still write.
    """
    return f"{RUNS}/{run.pk}" if run.attempts < 2 else f"{RUNS}/{run.pk}-{run.attempts}"


def _run_pipeline(run: Run, progress: Progress, parts: Parts) -> Outcome:
    """Execute the pipeline of the run's kind on its stored inputs, and return its outcome.

    A forecast may be of a trace alone. All other runs are of a scenario.
    """
    if run.kind == Run.Kind.FORECAST and run.trace is not None:
        options = options_of(TraceOptions, run.options)
        series = trace_series(stored_trace(ready_trace(run.trace.name)), options.bin_s)
        return run_series(series, options, progress=progress)
    kind = KINDS.get(run.kind)
    if kind is None:
        raise ScenarioError(f"A {run.get_kind_display()} run cannot be made of a scenario.")
    # parsed again: the row may be older than this program
    kind_options = options_of(kind.options, run.options)
    scenario = parse(run.document, run.name or "scenario")
    further_arguments = {"parts": parts} if kind.spread else {}
    body = kind.run
    # A Pareto front uses the inputs of the plan that a comparison recommends, if there is one.
    recommended = _recommended_plan(run) if run.kind == Run.Kind.PARETO else None
    if recommended is not None:
        basis, cost_usd = recommended
        body = partial(body, basis=basis, simulated_usd=cost_usd)
    inputs = Inputs(scenario, stored_traces(scenario), stored_hardware(run.resolved))
    return body(inputs, kind_options, progress=progress, **further_arguments)


def _recommended_plan(run: Run) -> tuple[Basis, float] | None:
    """Return the inputs of the plan that a comparison recommends, and its simulated cost (USD).

    It is the newest comparison of the run's scenario. None if the scenario, as it is now, has none,
    or if that recommends nothing.
    """
    comparisons = Run.objects.filter(
        kind=Run.Kind.COMPARE, state=Run.State.COMPLETED, workspace=run.workspace,
        document=run.document, resolved=run.resolved,
    )  # fmt: skip
    newest = comparisons.order_by("-pk").first()
    if newest is None:
        return None
    basis = from_arrays(row_arrays.arrays_read(newest.store, BASIS))
    recommended = newest.result.get("recommended")
    return (basis, recommended["cost_usd"]) if basis and recommended else None


def stored_traces(scenario: Scenario) -> dict[str, StoredTrace]:
    """Return the traces that a scenario names, by name, with the paths of their stored data.

    Raises ScenarioError if a source names a file instead.
    """
    stored: dict[str, StoredTrace] = {}
    for index, source in enumerate(scenario.traffic.sources):
        if source.launch is not None:
            continue
        if source.trace is None:
            raise ScenarioError(
                f"traffic.sources[{index}].file: paths are for the command line. Upload the file "
                "and name it under trace instead."
            )
        if source.trace not in stored:
            stored[source.trace] = stored_trace(ready_trace(source.trace))
    return stored


def stored_trace(trace: Trace) -> StoredTrace:
    """Return a trace in the form that the pipelines take."""
    return StoredTrace(
        name=trace.name,
        kind=trace.kind,
        clock=trace.report.get("clock", "utc"),
        store=row_arrays.local_path(trace.store),
        sample=trace.report.get("sample", 1.0),
        assumptions=tuple(trace.report.get("assumptions", ())),
    )
