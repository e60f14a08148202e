"""Word the settings in which runs differ: labels of the form, and rows of a list as one line."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms

from planner.domain.formats import (
    NOTHING,
    duration,
    figure,
    key_words,
    milliseconds,
    parameter_text,
)
from planner.inputs.scenario.address import names_of
from planner.inputs.scenario.schema import Scenario
from planner.policies.registry import POLICIES, TRAITS
from planner.selectors.run_comparison_figures import Setting
from planner.web.forms.document import Row
from planner.web.forms.fields import SCALARS
from planner.web.forms.profile_choice import ProfileChoice
from planner.web.forms.scenario import KIND_LABELS, RegionRow, SourceRow, TierRow, TodayRow

MOST_FIELDS = 2  # of an entry with more differences, only its name is shown
MOST_NAMES = 4  # of a list in one cell
_ENTRY = re.compile(r"(.+?)\[([^\]]+)\]\.?(.*)")


@dataclass(frozen=True, slots=True)
class Cell:
    """The value of one run in a line, and how it compares with that of the first run."""

    text: str
    change: str = ""  # difference from the first run
    mark: str = ""  # better or worse; of a setting: changed
    good: bool | None = None  # None: neither better nor worse


@dataclass(frozen=True, slots=True)
class Line:
    """A figure or a setting, with one cell per run."""

    label: str
    cells: tuple[Cell, ...]
    help: str = ""
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class ListSection:
    """A list of a scenario: its title, one entry in words, and the form of an entry."""

    title: str
    singular: str
    words: Callable[[Row], str]
    form: type[forms.Form] | None = None


def _profile(entry: Row) -> str:
    role = entry.get("role")
    return ProfileChoice.of(entry).label + (f", {role}" if role in ("prefill", "decode") else "")


def _source(entry: Row) -> str:
    trace = entry.get("trace") or entry.get("file") or "launch"
    part = entry.get("series") or entry.get("name") or entry.get("model")
    return f"{trace}: {part}" if part else str(trace)


def _today(entry: Row) -> str:
    role = entry.get("role")
    places = [entry.get("model"), entry.get("region"), role if role != "mixed" else None]
    return " ".join([f"{entry.get('replicas')} x", *(str(place) for place in places if place)])


def _test_day(entry: Row) -> str:
    label = KIND_LABELS.get(str(entry.get("kind")), str(entry.get("kind")))
    amount = entry.get("windows") or entry.get("paths")
    times = f" × {entry['times']:g}" if entry.get("times") else ""
    return f"{label}: {amount}" if amount else f"{label}{times}"


def _policy(entry: Row) -> str:
    name = str(entry.get("name"))
    return str(entry.get("label") or POLICIES.get(name, name))


def _name(entry: Row) -> str:
    return str(entry.get("name") or "")


LISTS = {
    "models": ListSection("Models", "Model", _name),
    "gpus": ListSection("GPUs", "GPU", _name),
    "profiles": ListSection("Profiles", "Profile", _profile),
    "regions": ListSection("Regions", "Region", _name, RegionRow),
    "tiers": ListSection("Tiers", "Tier", _name, TierRow),
    "traffic.sources": ListSection("Traffic sources", "Traffic source", _source, SourceRow),
    "fleet.today": ListSection("Replicas today", "Replicas today", _today, TodayRow),
    "policies": ListSection("Policies", "Policy", _policy),
    "test_days": ListSection("Test days", "Test day", _test_day),
}


def setting_lines(
    differences: Sequence[Setting], scenarios: Sequence[Scenario | None]
) -> list[Line]:
    """Return the settings that differ as lines of a table, with one cell per run.

    ``scenarios`` has the scenario of each run as plain data. Entries of a list that a run lacks, or
    that differ in many fields, share one line with their names.
    """
    plain: list[Row] = [
        {} if each is None else each.model_dump(mode="json", by_alias=True) for each in scenarios
    ]
    sections = dict.fromkeys(section for section, _ in _settings_by_entry(differences))
    entries = {section: [_entries(each, section) for each in plain] for section in sections}
    lines: list[Line] = []
    in_a_line: dict[str, set[str]] = {}  # entries that share a line, by section
    for section, names in _entries_as_a_whole(differences, entries).items():
        line = _line_of_entries(LISTS[section], entries[section])
        if line is not None:  # else their names do not tell them apart
            lines.append(line)
            in_a_line[section] = names
    for row in differences:
        match = _ENTRY.fullmatch(row.key)
        if match is None or match[2] not in in_a_line.get(match[1], ()):
            lines.append(setting_line(row))
    return lines


def _settings_by_entry(differences: Sequence[Setting]) -> dict[tuple[str, str], list[Setting]]:
    """Return the settings of entries of lists by (section, name of the entry)."""
    by_entry: dict[tuple[str, str], list[Setting]] = {}
    for row in differences:
        match = _ENTRY.fullmatch(row.key)
        if match and match[1] in LISTS:
            by_entry.setdefault((match[1], match[2]), []).append(row)
    return by_entry


def _entries_as_a_whole(
    differences: Sequence[Setting], entries: Mapping[str, Sequence[Mapping[str, Row]]]
) -> dict[str, set[str]]:
    """Return the names of the entries that a run lacks or that differ in many fields, by section.

    ``entries`` has those of each run, by section.
    """
    names: dict[str, set[str]] = {}
    for (section, name), rows in _settings_by_entry(differences).items():
        is_missing = any(name not in of_run for of_run in entries[section])
        if is_missing and name.isdecimal():  # an index means another entry in each run
            names.setdefault(section, set()).update(*entries[section])
        elif is_missing or len(rows) > MOST_FIELDS:
            names.setdefault(section, set()).add(name)
    return names


def _entries(scenario: Row, section: str) -> dict[str, Row]:
    """Return the entries of the list ``section`` of a scenario, by their names in settings' keys.

    In the key ``tiers[chat].ttft_ms`` it is "chat". An entry that is only a name becomes a row.
    """
    node: Any = scenario
    for key in section.split("."):
        node = (node or {}).get(key)
    entries = node or ()
    rows: list[Row] = [each if isinstance(each, dict) else {"name": each} for each in entries]
    return dict(zip(names_of(entries), rows, strict=True))


def _line_of_entries(section: ListSection, entries: Sequence[Mapping[str, Row]]) -> Line | None:
    """Return one line with the ``entries`` of each run, or None if their texts are equal."""
    words = [[*dict.fromkeys(map(section.words, of_run.values()))] for of_run in entries]
    if all(each == words[0] for each in words):
        return None
    texts = []
    for each in words:
        more = len(each) - MOST_NAMES
        texts.append("; ".join(each[:MOST_NAMES]) + (f"; and {more} more" if more > 0 else ""))
    return Line(section.title, _cells(texts))


def setting_line(row: Setting) -> Line:
    """Return a setting as a line of the table, with one cell per run."""
    scalar = next((each for each in SCALARS.values() if each.path == row.key), None)
    label = _label(row.key) if scalar is None else scalar.label
    in_ms = row.key.endswith("_ms")

    def text(value: Any) -> str:
        if value is None or not isinstance(value, int | float) or isinstance(value, bool):
            return _text(value)
        if in_ms:
            return milliseconds(value)
        if scalar is not None and scalar.is_duration:
            return duration(value)
        return figure(value / scalar.per) if scalar and scalar.per else _text(value)

    label = label.removesuffix(", ms") if in_ms else label  # the values have their units
    return Line(label, _cells([text(value) for value in row.values]))


def _label(key: str) -> str:
    """Return the label of the setting at an address."""
    match = _ENTRY.fullmatch(key)
    if match is None or match[1] not in LISTS:
        return _words(key)
    section, name, field = LISTS[match[1]], match[2], match[3]
    name = TRAITS[name].label if match[1] == "policies" and name in TRAITS else name
    entry = f"{section.singular} {int(name) + 1 if name.isdecimal() else name}"
    if not field:
        return entry
    first, _, rest = field.partition(".")
    fields = section.form().fields if section.form else {}
    words = str(fields[first].label) if first in fields else key_words(first)
    return f"{entry}: {words}, {rest}" if rest else f"{entry}: {words}"


def _words(key: str) -> str:
    """Return the keys of an address as words, such as "Objective: spare replicas"."""
    first, _, rest = key.replace("option ", "Option: ").partition(".")
    return key_words(f"{first}: {rest}" if rest else first).replace("instance", "replica")


def _cells(texts: Sequence[str]) -> tuple[Cell, ...]:
    return tuple(
        Cell(text or NOTHING, mark="changed" if text != texts[0] else "") for text in texts
    )


def _text(value: Any) -> str:
    """Return the value of a setting as text."""
    if isinstance(value, list):
        return ", ".join(parameter_text(item) for item in value)
    return "" if value is None else parameter_text(value)
