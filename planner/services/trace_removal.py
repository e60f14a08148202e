"""Find what needs a trace, and remove a trace that nothing needs."""

from collections.abc import Mapping
from typing import Any

from planner.errors import NotReady
from planner.inputs.scenario.document import outline
from planner.models import Run, Source, Trace, User
from planner.selectors.scenarios import scenarios_with
from planner.services.access import check_may_remove
from planner.services.audit import record
from planner.storage import row_arrays


def trace_delete(*, trace: Trace, user: User) -> None:
    """Remove a trace for a user with the right to; raise NotReady if something needs it."""
    check_may_remove(user, trace.owner_id, "this trace", "uploaded")
    trace_remove(trace=trace, by=user)


def trace_remove(*, trace: Trace, by: User | None, rule: str = "") -> None:
    """Remove a trace and its arrays; raise NotReady if something needs it.

    The caller checks the user's rights. ``by`` None: the command line, or the ``rule``.
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
    if trace.runs.filter(kind=Run.Kind.INGEST, state__in=Run.ACTIVE_STATES).exists():
        raise NotReady(f"Trace {trace.name} is still being read. Cancel its run first.")
    active = Run.objects.filter(state__in=Run.ACTIVE_STATES).exclude(document="")
    documents = active.values_list("document", flat=True)
    if trace.runs.filter(state__in=Run.ACTIVE_STATES).exists() or any(
        trace.name in _trace_names(outline(document)) for document in documents
    ):
        raise NotReady(f"Trace {trace.name} is in a run that is going. Wait for it or cancel it.")
    check_unused(trace)


def check_unused(trace: Trace) -> None:
    """Raise NotReady if a scenario names the trace."""
    if scenarios := scenarios_with(lambda document: trace.name in _trace_names(document)):
        raise NotReady(
            f"Trace {trace.name} is used by scenario {', '.join(scenarios)}. "
            "Change or remove that first."
        )


def _trace_names(document: Mapping[str, Any]) -> set[str | None]:
    """Return the names of the stored traces in a scenario."""
    return {source.get("trace") for source in document["traffic"]["sources"]}


def uploads_remove(trace: Trace) -> None:
    """Remove uploads of the trace's ingest runs that are left, such as of cancelled runs."""
    for run in trace.runs.filter(kind=Run.Kind.INGEST):
        row_arrays.remove(run.options["upload"])
