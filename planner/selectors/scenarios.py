"""Read scenarios and their versions, and compare two versions."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from difflib import unified_diff
from typing import Any

from django.db.models import F, FloatField, Max, Q, QuerySet
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from planner.domain.reports.policies import span_text
from planner.domain.results.answer import ScheduleRow, span_of
from planner.domain.serialise import from_json
from planner.errors import NotFound, ScenarioError
from planner.inputs.scenario.address import values_by_address
from planner.inputs.scenario.document import outline, parse, section_of
from planner.models import Run, Scenario, ScenarioVersion
from planner.selectors.lookup import row_by_name
from planner.selectors.run_comparison_figures import Setting, compare_settings

NEWEST = 5  # scenarios whose models and GPU types come first; reading one takes milliseconds


def scenarios_list() -> QuerySet[Scenario]:
    """Return all scenarios with their owners."""
    return Scenario.objects.select_related("owner")


def scenarios_with(condition: Callable[[Mapping[str, Any]], bool]) -> list[str]:
    """Return the names of the scenarios whose document, as a mapping, meets ``condition``."""
    scenarios = Scenario.objects.values_list("name", "document")
    return [name for name, document in scenarios if condition(outline(document))]


def models_of_scenarios() -> set[str]:
    """Return the names of the models in the scenarios that were changed last."""
    names = set()
    for document in _newest_outlines():
        for model in document.get("models") or ():
            names.add(str(model.get("name", "") if isinstance(model, Mapping) else model))
    return names


def gpus_of_scenarios() -> list[str]:
    """Return the GPU types of the scenarios that were changed last, those of today's fleets first.

    The newest scenario comes first.
    """
    pools: list[Any] = []
    profiles: list[Any] = []
    for document in _newest_outlines():
        pools += (document.get("fleet") or {}).get("today") or ()
        profiles += document.get("profiles") or ()
    return list(dict.fromkeys(str(row["gpu"]) for row in (*pools, *profiles) if "gpu" in row))


def _newest_outlines() -> list[Any]:
    """Return the documents of the scenarios that were changed last, as plain data."""
    return [outline(text) for text in Scenario.objects.values_list("document", flat=True)[:NEWEST]]


@dataclass(frozen=True, slots=True)
class LatestComparison:
    """The newest completed comparison or plan of a scenario, with figures of its recommendation.

    A figure is None if the result does not have it.
    """

    pk: int  # of the run
    kind: str
    finished_at: datetime | None
    outdated: bool  # the scenario changed since
    plan: str | None  # label of the policy
    assurance: str | None
    meets_slo: bool | None  # None also for a plan that was not simulated
    replicas: str | None  # as scheduled, such as "4 to 6"
    cost: float | None  # dollars of the window
    window_s: float | None  # its length


def latest_comparisons(
    scenarios: Iterable[Scenario], kind: str = Run.Kind.COMPARE
) -> dict[int, LatestComparison]:
    """Return the newest completed run of ``kind`` (comparison or plan) by scenario id."""
    completed = Run.objects.filter(
        scenario__in=scenarios, kind=kind, state=Run.State.COMPLETED, sweep=None
    )
    newest = completed.order_by().values("scenario").annotate(newest=Max("pk")).values("newest")
    rows: Any = Run.objects.filter(pk__in=newest).values(
        "scenario_id",
        "pk",
        "kind",
        "finished_at",
        outdated=~Q(document=F("scenario__document")),
        plan=KT("result__recommended__label"),
        assurance=KT("result__recommended__assurance"),
        meets_slo=KT("result__recommended__meets_slo"),
        replicas=KT("result__recommended__timetable__rows"),
        start=KT("result__window__start"),
        end=KT("result__window__end"),
        cost=Cast(KT("result__recommended__cost_usd"), FloatField()),
    )
    return {row.pop("scenario_id"): _latest_comparison(row) for row in rows}


def _latest_comparison(row: dict[str, Any]) -> LatestComparison:
    """Return a comparison from the columns that ``latest_comparisons`` selects.

    ``meets_slo`` and ``replicas`` (the rows of the schedule) are JSON text.
    """
    row["meets_slo"] = json.loads(row["meets_slo"] or "null")
    schedule = json.loads(row["replicas"] or "[]") or ()
    span = span_of(from_json(ScheduleRow, step) for step in schedule)
    row["replicas"] = span_text(span) if span else None
    start, end = row.pop("start"), row.pop("end")
    row["window_s"] = None
    if start and end:
        window = datetime.fromisoformat(end) - datetime.fromisoformat(start)
        row["window_s"] = window.total_seconds()
    return LatestComparison(**row)


def scenario_get(name: str) -> Scenario:
    """Return a scenario by name or id; raise NotFound."""
    return row_by_name(Scenario.objects.all(), "scenario", name)


@dataclass(frozen=True, slots=True)
class VersionDifference:
    """The differences between two versions of a scenario."""

    settings: tuple[Setting, ...]  # with the values (old, new)
    same: int  # number of settings with equal values
    lines: tuple[str, ...]  # unified diff of the documents
    notes: tuple[str, ...]


def versions_of(scenario: Scenario) -> QuerySet[ScenarioVersion]:
    """Return the versions of a scenario, the newest first."""
    rows = ScenarioVersion.objects.filter(scenario=scenario)
    return rows.select_related("author", "origin", "scenario")


def versions_changing(scenario: Scenario, part: str) -> QuerySet[ScenarioVersion]:
    """Return the versions that changed the section ``part`` of a scenario; "": all versions."""
    if not part:
        return versions_of(scenario)
    numbers, previous_section = [], None
    rows = ScenarioVersion.objects.filter(scenario=scenario).order_by("number")
    for number, document in rows.values_list("number", "document").iterator():
        section = section_of(document, part)
        if section != previous_section:
            numbers.append(number)
        previous_section = section
    return versions_of(scenario).filter(number__in=numbers)


def version_get(scenario: Scenario, number: int) -> ScenarioVersion:
    """Return a version by number; raise NotFound with the newest numbers."""
    version = versions_of(scenario).filter(number=number).first()
    if version is None:
        numbers = sorted(versions_of(scenario).values_list("number", flat=True))
        newest = ", ".join(map(str, numbers[-10:]))
        raise NotFound(f"{scenario.name} has no version {number}. Choose from {newest}.")
    return version


def compare_versions(
    old: ScenarioVersion, new: ScenarioVersion, part: str = ""
) -> VersionDifference:
    """Compare the settings and lines of two versions, or only of their section ``part``.

    If a version cannot be read, only lines are compared, with a note.
    """
    notes: list[str] = []
    different, same = compare_settings([_settings(version, part, notes) for version in (old, new)])
    texts = [
        section_of(version.document, part) if part else version.document for version in (old, new)
    ]
    old_lines, new_lines = (text.splitlines() for text in texts)
    old_name, new_name = (f"{version.name}, version {version.number}" for version in (old, new))
    diff = unified_diff(old_lines, new_lines, old_name, new_name, lineterm="", n=2)
    return VersionDifference(
        settings=() if notes else different,
        same=0 if notes else same,
        lines=tuple(diff),
        notes=tuple(notes),
    )


def _settings(version: ScenarioVersion, part: str, notes: list[str]) -> dict[str, Any]:
    """Return the settings of a version by address.

    ``part`` limits them to one section; "": all sections. If the version cannot be read, return {}
    and add a sentence to ``notes``.
    """
    try:
        settings = values_by_address(parse(version.document, version.name))
    except ScenarioError:
        notes.append(
            f"Version {version.number} was written for another release of this program and cannot "
            "be read. Only the files are compared, not their settings."
        )
        return {}
    return {
        address: value
        for address, value in settings.items()
        if not part or address == part or address.startswith((f"{part}.", f"{part}["))
    }
