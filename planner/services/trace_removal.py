"""Find what needs a trace, and remove a trace that nothing needs."""

from planner.errors import NotReady
from planner.inputs.scenario import document as text
from planner.models import Run, Scenario, Source, Trace, User
from planner.services.access import check_may_remove
from planner.services.audit import record
from planner.storage import row_arrays

ACTIVE_STATES = (Run.State.PENDING, Run.State.RUNNING)


def trace_delete(*, trace: Trace, user: User) -> None:
    """Remove a trace for a user with the right to; raise NotReady if something needs it."""
    check_may_remove(user, trace.owner_id, "this trace", "uploaded")
    trace_remove(trace=trace, by=user)


def trace_remove(*, trace: Trace, by: User | None, rule: str = "") -> None:
    """Remove a trace and its arrays; raise NotReady if something needs it.

    The caller checks the user's rights.
    """
    check_not_needed(trace)
    store = trace.store
    uploads_remove(trace)
    record("trace.removed", trace, by=by, rule=rule)
    trace.delete()
    row_arrays.remove(store)


def check_not_needed(trace: Trace) -> None:
    """Raise NotReady if a live source, a scenario or an active run needs the trace."""
    if live := Source.objects.filter(trace=trace).first():
        raise NotReady(f"Trace {trace.name} is of the live source {live.name}. Remove that first.")
    if trace.runs.filter(kind=Run.Kind.INGEST, state__in=ACTIVE_STATES).exists():
        raise NotReady(f"Trace {trace.name} is still being read. Cancel its run first.")
    active_documents = [
        run.document for run in Run.objects.filter(state__in=ACTIVE_STATES) if run.document
    ]
    if (
        trace.runs.filter(state__in=ACTIVE_STATES).exists()
        or any(trace.name in _trace_names(document) for document in active_documents)
    ):  # fmt: skip
        raise NotReady(f"Trace {trace.name} is in a run that is going. Wait for it or cancel it.")
    check_unused(trace)


def check_unused(trace: Trace) -> None:
    """Raise NotReady if a scenario names the trace."""
    scenarios = [
        scenario.name
        for scenario in Scenario.objects.all()
        if trace.name in _trace_names(scenario.document)
    ]
    if scenarios:
        raise NotReady(
            f"Trace {trace.name} is used by scenario {', '.join(scenarios)}. "
            "Change or remove that first."
        )


def _trace_names(document: str) -> set[str | None]:
    """Return the names of the stored traces in a scenario."""
    sources = text.outline(document)["traffic"]["sources"]
    return {source.get("trace") for source in sources}


def uploads_remove(trace: Trace) -> None:
    """Remove uploads of the trace's ingest runs that are left, such as of cancelled runs."""
    for run in trace.runs.filter(kind=Run.Kind.INGEST):
        row_arrays.remove(run.options["upload"])
