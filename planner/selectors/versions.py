"""Read the versions of a scenario, and compare two of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any

from django.db.models import QuerySet

from planner.errors import NotFound, ScenarioError
from planner.inputs.scenario.address import values_by_address
from planner.inputs.scenario.document import parse, section_of
from planner.models import Scenario, ScenarioVersion
from planner.selectors.run_comparison_figures import Setting


@dataclass(frozen=True, slots=True)
class VersionDifference:
    """The differences between two versions.

    ``settings`` has the pair of values of each, None if one version lacks it. ``lines`` is a
    unified diff of the documents.
    """

    settings: tuple[Setting, ...]
    same: int  # number of settings with equal values
    lines: tuple[str, ...]
    notes: tuple[str, ...]


def versions_of(scenario: Scenario) -> QuerySet[ScenarioVersion]:
    """Return the versions of a scenario, the newest first."""
    rows = ScenarioVersion.objects.filter(scenario=scenario)
    return rows.select_related("author", "origin", "scenario")


def versions_changing(scenario: Scenario, part: str) -> QuerySet[ScenarioVersion]:
    """Return the versions that changed a section; all versions if no ``part`` is named."""
    if not part:
        return versions_of(scenario)
    numbers, before = [], None
    rows = ScenarioVersion.objects.filter(scenario=scenario).order_by("number")
    for number, document in rows.values_list("number", "document").iterator():
        section = section_of(document, part)
        if section != before:
            numbers.append(number)
        before = section
    return versions_of(scenario).filter(number__in=numbers)


def version_get(scenario: Scenario, number: int) -> ScenarioVersion:
    """Return a version by number; raise NotFound with the newest numbers."""
    version = versions_of(scenario).filter(number=number).first()
    if version is None:
        numbers = versions_of(scenario).values_list("number", flat=True)
        raise NotFound(
            f"{scenario.name} has no version {number}. Choose from "
            f"{', '.join(str(held_number) for held_number in sorted(numbers)[-10:])}."
        )
    return version


def compare_versions(
    old: ScenarioVersion, new: ScenarioVersion, part: str = ""
) -> VersionDifference:
    """Compare two versions, or one section of them."""
    notes: list[str] = []
    before, after = (_settings(version, notes) for version in (old, new))
    keys = [
        setting
        for setting in dict.fromkeys([*before, *after])
        if not part or (setting == part or setting.startswith((f"{part}.", f"{part}[")))
    ]
    rows = [Setting(key, (before.get(key), after.get(key))) for key in keys]
    different = tuple(row for row in rows if row.values[0] != row.values[1])
    return VersionDifference(
        settings=() if notes else different,
        same=0 if notes else len(rows) - len(different),
        lines=tuple(_lines(old, new, part)),
        notes=tuple(notes),
    )


def _settings(version: ScenarioVersion, notes: list[str]) -> dict[str, Any]:
    """Return a version's settings by address; if it cannot be read, {} and a note."""
    try:
        return values_by_address(parse(version.document, version.name))
    except ScenarioError:
        notes.append(
            f"Version {version.number} was written for another release of this program and cannot "
            "be read. Only the files are compared, not their settings."
        )
        return {}


def _lines(old: ScenarioVersion, new: ScenarioVersion, part: str) -> Iterator[str]:
    """Yield the unified diff of two versions, or of one section of them."""
    texts = (version.document for version in (old, new))
    before, after = ((section_of(text, part) if part else text).splitlines() for text in texts)
    names = [f"{version.name}, version {version.number}" for version in (old, new)]
    return unified_diff(before, after, names[0], names[1], lineterm="", n=2)
