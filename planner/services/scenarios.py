"""Store, change and remove scenarios; documents are checked before they are stored."""

from typing import Any

from django.db import IntegrityError, transaction

from planner.domain.traffic.traffic import build_traffic
from planner.domain.traffic.window import resolve_window
from planner.errors import (
    EXPECTED,
    NotFound,
    NotReady,
    PlannerError,
    ScenarioError,
    VersionConflict,
)
from planner.inputs.scenario import document as text
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import parse, with_section
from planner.inputs.scenario.settings import settings_of
from planner.models import ActivePlan, Run, Scenario, ScenarioVersion, Trace, User
from planner.selectors.run_hardware import hardware_of
from planner.services import runs
from planner.services.access import check_may_plan, check_may_remove
from planner.services.audit import record
from planner.services.execution import stored_traces
from planner.services.scenario_hardware import resolve_scenario

MAX_MESSAGE_CHARACTERS = 500  # of a change note


@transaction.atomic
def scenario_create(
    *, owner: User | None, document: str, message: str = "", origin: ScenarioVersion | None = None
) -> Scenario:
    """Store a new scenario under the name in its document; raise ScenarioError if invalid.

    ``origin`` is the version from which the document was copied, if any.
    """
    check_may_plan(owner)
    saved = _save(Scenario(owner=owner), document, owner, message, origin)
    record("scenario.created", saved, by=owner, **_origin_details(origin))
    return saved


def scenario_update(
    *,
    scenario: Scenario,
    user: User | None,
    document: str,
    version: int | None = None,
    message: str = "",
    origin: ScenarioVersion | None = None,
) -> Scenario:
    """Replace the document of a scenario; the old document stays as a version.

    ``version`` is the version that the user edited; None: any. Raises VersionConflict if somebody
    saved in between. ``origin`` is the version from which the document was copied, if any.
    """
    check_may_plan(user)
    with transaction.atomic():
        locked = Scenario.objects.select_for_update().filter(pk=scenario.pk).first()
        if locked is None:
            raise NotFound(f"{scenario.name} was removed while you edited it. Add it again.")
        if version is not None and version != locked.version:
            raise VersionConflict(
                f"{locked.name} was changed by another person while you edited it. "
                "Copy your changes, load it again and repeat them."
            )
        # An unchanged document makes no new version.
        if document == locked.document:
            return locked
        locked.version += 1
        saved = _save(locked, document, user, message, origin)
        record("scenario.changed", saved, by=user, version=saved.version, **_origin_details(origin))
        return saved


def scenario_edit(
    *,
    scenario: Scenario,
    user: User,
    changes: dict[str, Any],
    version: int | None = None,
    message: str = "",
) -> Scenario:
    """Store a new version with ``changes``, values by dotted path (None: remove it).

    For ``version`` see ``scenario_update``.
    """
    document = text.edit(scenario.document, changes)
    return scenario_update(
        scenario=scenario, user=user, document=document, version=version, message=message
    )


def scenario_restore(
    *,
    version: ScenarioVersion,
    user: User,
    message: str = "",
    part: str = "",
    into: Scenario | None = None,
) -> Scenario:
    """Store an earlier version of a scenario, or only its section ``part``, as the newest version.

    ``into`` is another scenario that gets the section; None: the scenario of the version.
    """
    target = into or version.scenario
    if into is not None and not part:
        raise PlannerError("into: name the part to copy to another scenario (policies).")
    version_words = f"version {version.number}"
    if into is not None:
        version_words = f"{version.name}, {version_words}"
    document, words = version.document, version_words.capitalize()
    if part:
        document = with_section(target.document, part, version.document)
        words = f"{part.capitalize()} of {version_words}"
    return scenario_update(
        scenario=target,
        user=user,
        document=document,
        message=message or f"{words} {'taken' if into else 'restored'}",
        origin=version,
    )


def scenario_branch(
    *, version: ScenarioVersion, user: User, name: str = "", message: str = ""
) -> Scenario:
    """Create a scenario from a version of another one; ``name`` "": with a free name."""
    branch_name = name.strip() or free_name(f"{version.name} branch")
    return scenario_create(
        owner=user,
        document=text.edit(version.document, {"name": branch_name}),
        message=message or f"Branched from {version.name}, version {version.number}",
        origin=version,
    )


def plan_branch(*, plan: ActivePlan, user: User, name: str = "", message: str = "") -> Scenario:
    """Create a scenario from the one that an active plan was made from; see scenario_branch."""
    run = plan.run
    if run is None:
        raise NotFound(
            f"Run {plan.number} was removed, so plan {plan.pk} has no scenario to branch."
        )
    versions = ScenarioVersion.objects.filter(scenario=run.scenario_id, document=run.document)
    branch_name = name.strip() or free_name(f"{plan.scenario} branch")
    return scenario_create(
        owner=user,
        document=text.edit(run.document, {"name": branch_name}),
        message=message or f"Branched from plan {plan.pk} (run {plan.number})",
        origin=versions.first(),
    )


def free_name(stem: str) -> str:
    """Return a name that no scenario has: ``stem``, with a number if it is taken."""
    stem = stem[:110]  # leaves space for the number in a column of 120 characters
    name, number = stem, 2
    while Scenario.objects.filter(name=name).exists():
        name = f"{stem} ({number})"
        number += 1
    return name


@transaction.atomic
def scenario_delete(*, scenario: Scenario, user: User) -> None:
    """Remove a scenario with its versions; raise NotReady if one of its runs is active."""
    check_may_remove(user, scenario.owner_id, "this scenario")
    if scenario.runs.filter(state__in=[Run.State.PENDING, Run.State.RUNNING]).exists():
        raise NotReady(f"{scenario.name} has a run going. Cancel it first.")
    record("scenario.removed", scenario, by=user, version=scenario.version)
    scenario.delete()


def scenario_run(
    *,
    scenario: Scenario,
    owner: User,
    kind: str = Run.Kind.COMPARE,
    options: dict[str, Any] | None = None,
    idempotency_key: str = "",
) -> Run:
    """Start a run of the current version of a scenario.

    ``options`` are those of its ``kind``; a ``seed`` among them replaces the scenario's. The same
    ``idempotency_key`` of the same owner returns the first run. Raises NotAllowed for a read-only
    role, PlannerError for an ingest run, and ScenarioError for an invalid document.
    """
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
    owner: User | None,
    kind: str,
    options: dict[str, Any] | None = None,
    idempotency_key: str = "",
    enqueue: bool = True,
) -> Run:
    """Start a run of a ``document`` that is no stored scenario; see ``scenario_run``.

    Without ``enqueue``, the caller executes it.
    """
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
        enqueue=enqueue,
    )


def _save(
    scenario: Scenario,
    document: str,
    author: User | None,
    message: str,
    origin: ScenarioVersion | None,
) -> Scenario:
    """Check the document, and save it in the scenario and as a new version of it.

    ``origin`` is the version from which the document was copied, if any.
    """
    if len(message) > MAX_MESSAGE_CHARACTERS:
        raise PlannerError(
            f"message: at most {MAX_MESSAGE_CHARACTERS} characters, not {len(message)}."
        )
    parsed = text.parse(document)
    scenario.name = parsed.name
    scenario.document = document
    scenario.full_clean(exclude=["owner"], validate_unique=False, validate_constraints=False)
    try:
        with transaction.atomic():
            scenario.save()
            ScenarioVersion.objects.create(
                scenario=scenario,
                number=scenario.version,
                name=scenario.name,
                document=document,
                message=message.strip(),
                origin=origin,
                author=author,
            )
    except IntegrityError:
        lines = enumerate(document.splitlines(), 1)
        name_lines = [number for number, text_line in lines if text_line.startswith("name:")]
        line = name_lines[0] if name_lines else 1
        raise ScenarioError(
            f"scenario, line {line}: name: a scenario {parsed.name!r} already exists. "
            "Choose another name."
        ) from None
    return scenario


def _origin_details(origin: ScenarioVersion | None) -> dict[str, Any]:
    """Return the origin of a version as details of an audit record; {} if it has none."""
    return {"from": f"{origin.name}, version {origin.number}"} if origin else {}


MAX_COUNTED_REQUESTS = 2_000_000  # requests that can be counted into bins within a second


def scenario_warnings(document: str) -> list[str]:
    """Return one sentence for each problem that a run of a valid document would have.

    Checks names, prices, traces, window and periods. The last two are not checked if the traces
    have over MAX_COUNTED_REQUESTS requests together.
    """
    scenario = parse(document)
    warnings = []
    try:
        build_hardware(scenario, hardware_of(resolve_scenario(scenario)))
    except EXPECTED as problem:
        warnings += str(problem).splitlines()
    try:
        traces = stored_traces(scenario)
        rows = Trace.objects.filter(name__in=traces, kind=Trace.Kind.REQUESTS)
        requests = sum(trace.requests or 0 for trace in rows)
        if requests <= MAX_COUNTED_REQUESTS:
            settings = settings_of(scenario)
            traffic = build_traffic(settings.traffic, traces)
            resolve_window(settings.window, traffic.demand, traffic.clock)
    except EXPECTED as problem:
        warnings += str(problem).splitlines()
    return warnings
