"""Scenarios: kept, changed, removed. The document is checked before it is kept."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction

from planner.errors import NotFound, NotReady, Outdated, PlannerError, ScenarioError
from planner.models import Run, Scenario, User
from planner.scenario import document as text
from planner.services import runs
from planner.services.access import check_may_plan, check_may_remove


def scenario_create(*, owner: User | None, document: str) -> Scenario:
    """Keep a new scenario under the name its document gives; raises ScenarioError."""
    check_may_plan(owner)
    return _save(Scenario(owner=owner), document)


def scenario_update(
    *, scenario: Scenario, user: User, document: str, version: int | None = None
) -> Scenario:
    """Replace the document. ``version`` is what the user had before them: if somebody saved in
    between, nothing is overwritten."""
    check_may_plan(user)
    with transaction.atomic():
        held = Scenario.objects.select_for_update().filter(pk=scenario.pk).first()
        if held is None:
            raise NotFound(f"{scenario.name} was removed while you edited it; make it anew.")
        if version is not None and version != held.version:
            raise Outdated(
                f"{held.name} was changed by somebody else while you edited it; "
                "copy your changes, load it again and repeat them."
            )
        if document == held.document:
            return held
        held.version += 1
        return _save(held, document)


def scenario_edit(
    *, scenario: Scenario, user: User, changes: dict[str, Any], version: int | None = None
) -> Scenario:
    """Change values at dotted paths, the rest of the document, comments too, kept as it is."""
    return scenario_update(
        scenario=scenario,
        user=user,
        document=text.edit(scenario.document, changes),
        version=version,
    )


def scenario_delete(*, scenario: Scenario, user: User) -> None:
    check_may_remove(user, scenario.owner_id, "this scenario")
    if scenario.runs.filter(state__in=[Run.State.PENDING, Run.State.RUNNING]).exists():
        raise NotReady(f"{scenario.name} has a run going; cancel it first.")
    scenario.delete()


def scenario_run(
    *,
    scenario: Scenario,
    owner: User,
    kind: str = Run.Kind.COMPARE,
    options: dict[str, Any] | None = None,
    idempotency_key: str = "",
) -> Run:
    """Start a run of the scenario as it is now."""
    check_may_plan(owner)
    if kind == Run.Kind.INGEST:
        raise PlannerError("An ingest run begins with an upload, not with a scenario.")
    parsed = text.parse(scenario.document, scenario.name)
    return runs.run_create(
        owner=owner,
        kind=kind,
        scenario=scenario,
        options=options or {},
        seed=(options or {}).get("seed", parsed.seed),
        idempotency_key=idempotency_key,
    )


def document_run(
    *,
    document: str,
    owner: User,
    kind: str,
    options: dict[str, Any] | None = None,
    idempotency_key: str = "",
) -> Run:
    """Start a run of a scenario that is not kept: the run alone holds its document."""
    check_may_plan(owner)
    parsed = text.parse(document)
    return runs.run_create(
        owner=owner,
        kind=kind,
        name=parsed.name,
        document=document,
        options=options or {},
        seed=(options or {}).get("seed", parsed.seed),
        idempotency_key=idempotency_key,
    )


def _save(scenario: Scenario, document: str) -> Scenario:
    parsed = text.parse(document)
    scenario.name = parsed.name
    scenario.document = document
    scenario.full_clean(exclude=["owner"], validate_unique=False)
    try:
        with transaction.atomic():
            scenario.save()
    except IntegrityError:
        line = next(
            (i for i, row in enumerate(document.splitlines(), 1) if row.startswith("name:")), 1
        )
        raise ScenarioError(
            f"scenario, line {line}: name: there is a scenario {parsed.name!r} already; "
            "choose another name."
        ) from None
    return scenario
