"""Run a scenario for every pair of values of two settings, in parallel on all workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from django.db import transaction
from django.utils import timezone

from planner.domain.kinds.registry import KINDS
from planner.domain.options import options_of
from planner.errors import KeyReused, NotReady, PlannerError, ScenarioError
from planner.inputs.scenario import document as text
from planner.models import Run, Scenario, Sweep, User, take_numbers
from planner.services import runs
from planner.services.access import check_may_plan, check_may_remove
from planner.services.run_queue import check_room

MOST_AXES, MOST_CELLS = 2, 256


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting by its address, and its values; None removes the setting."""

    key: str
    values: tuple[Any, ...]


def sweep_create(
    *,
    owner: User | None,
    document: str,
    axes: Sequence[Axis],
    kind: str = Run.Kind.PLAN,
    scenario: Scenario | None = None,
    options: dict[str, Any] | None = None,
    idempotency_key: str = "",
    enqueue: bool = True,
) -> Sweep:
    """Start a run for every cell of the grid.

    The same ``idempotency_key`` of the same owner returns the first sweep.

    Raises ScenarioError before anything starts if a value makes no valid scenario. Raises KeyReused
    if the key belongs to another request.
    """
    check_may_plan(owner)
    if kind not in KINDS:
        raise PlannerError(f"There is no kind of run {kind!r}; choose from {', '.join(KINDS)}.")
    _check(axes)
    chosen = options_of(KINDS[kind].options, options or {}).given()
    cells = documents_of(document, axes)
    parsed = text.parse(document)
    plain = [{"key": axis.key, "values": list(axis.values)} for axis in axes]
    if (first := runs.run_with_key(owner, idempotency_key)) is not None:
        return _first(first, idempotency_key, (kind, document, chosen, plain))
    if enqueue:
        check_room(owner, len(cells))
    with transaction.atomic():
        sweep = Sweep.objects.create(
            name=parsed.name,
            scenario=scenario,
            kind=kind,
            document=document,
            options=chosen,
            axes=plain,
            owner=owner,
        )
        # One lock for all runs, so that their numbers are consecutive.
        numbers = take_numbers(Run, len(cells))
        for cell, (changed, number) in enumerate(zip(cells, numbers, strict=True)):
            runs.run_create(
                owner=owner, kind=kind, scenario=scenario, name=parsed.name, document=changed,
                options=chosen, seed=chosen.get("seed", text.parse(changed).seed), sweep=sweep,
                cell=cell, number=number, enqueue=enqueue,
                idempotency_key="" if cell else idempotency_key,
            )  # fmt: skip
    return sweep


def _first(run: Run, key: str, asked: tuple[Any, ...]) -> Sweep:
    """Return the sweep that was started under the key, if the request was the same."""
    sweep = run.sweep
    if sweep is None or (sweep.kind, sweep.document, sweep.options, sweep.axes) != asked:
        raise KeyReused(
            f"The idempotency key {key!r} belongs to run {run.pk}, which was asked for with other "
            "values; send a new key for a new request."
        )
    return sweep


def _check(axes: Sequence[Axis]) -> None:
    if not 1 <= len(axes) <= MOST_AXES:
        raise PlannerError(f"vary: give one setting or two, not {len(axes)}.")
    if len({axis.key for axis in axes}) < len(axes):
        raise PlannerError(f"vary: {axes[0].key} is named twice; vary another setting with it.")
    count = 1
    for axis in axes:
        if not axis.values:
            raise PlannerError(f"vary: {axis.key} has no values; write them with commas between.")
        if len({repr(value) for value in axis.values}) < len(axis.values):
            raise PlannerError(f"vary: {axis.key} has a value twice; name each once.")
        count *= len(axis.values)
    if count > MOST_CELLS:
        raise PlannerError(f"vary: {count} runs are more than {MOST_CELLS}; name fewer values.")


def documents_of(document: str, axes: Sequence[Axis]) -> list[str]:
    """Return the scenario of every cell, row by row, each checked."""
    documents = []
    for values in product(*(axis.values for axis in axes)):
        changes = dict(zip((axis.key for axis in axes), values, strict=True))
        assigned = ", ".join(f"{key} = {value}" for key, value in changes.items())
        try:
            changed = text.edit(document, changes)
            text.parse(changed)
        except ScenarioError as problem:
            raise ScenarioError(f"vary: with {assigned}: {problem}") from None
        documents.append(changed)
    return documents


def sweep_cancel(*, sweep: Sweep, user: User) -> int:
    """Stop every run of the sweep that is not over; return how many."""
    check_may_plan(user, "not cancel sweeps")
    now = timezone.now()
    waiting = sweep.runs.filter(state=Run.State.PENDING).update(
        state=Run.State.CANCELLED, finished_at=now, stage="Cancelled", cancel_requested=True
    )
    return waiting + sweep.runs.filter(state=Run.State.RUNNING).update(cancel_requested=True)


def sweep_delete(*, sweep: Sweep, user: User) -> None:
    """Remove a finished sweep, with its runs and their arrays."""
    check_may_remove(user, sweep.owner_id, "this sweep", "started")
    if sweep.runs.filter(state__in=[Run.State.PENDING, Run.State.RUNNING]).exists():
        raise NotReady(f"Sweep {sweep.pk} is still going; cancel it first.")
    for run in sweep.runs.all():
        runs.check_not_proposed(run)
    for run in sweep.runs.all():
        runs.run_remove(run=run)
    sweep.delete()
