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
from planner.web.forms.document import Row, value_at
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
    """Return a profile of a scenario in words, with its role if it does one phase."""
    choice = ProfileChoice.of(entry)
    return f"{choice.label}, {choice.role}" if choice.role else choice.label


def _source(entry: Row) -> str:
    """Return a traffic source in words: its trace, and the series, name or model if stated."""
    trace = entry.get("trace") or entry.get("file") or "launch"
    part = entry.get("series") or entry.get("name") or entry.get("model")
    return f"{trace}: {part}" if part else str(trace)


def _today(entry: Row) -> str:
    """Return replicas of today in words, such as "4 x MODEL REGION prefill"."""
    role = entry.get("role")
    facts = [entry.get("model"), entry.get("region"), role if role != "mixed" else None]
    return " ".join([f"{entry.get('replicas')} x", *map(str, filter(None, facts))])


def _test_day(entry: Row) -> str:
    """Return a test day in words: its kind, and the number of days or the factor if stated."""
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

    ``scenarios`` has the scenario of each run. Entries of a list, such as tiers, share one line
    of their names if a run lacks one or they differ in many fields. Other settings have own lines.
    """
    documents: list[Row] = [
        {} if scenario is None else scenario.model_dump(mode="json", by_alias=True)
        for scenario in scenarios
    ]
    sections = dict.fromkeys(section for section, _ in _settings_by_entry(differences))
    entries = {section: [_entries(run, section) for run in documents] for section in sections}
    lines: list[Line] = []
    in_shared_line: dict[str, set[str]] = {}  # names of entries by section
    for section, names in _entries_as_a_whole(differences, entries).items():
        line = _line_of_entries(LISTS[section], entries[section])
        if line is not None:  # otherwise their names do not tell them apart
            lines.append(line)
            in_shared_line[section] = names
    for setting in differences:
        section, name, _ = _entry_of_key(setting.key) or ("", "", "")
        if name not in in_shared_line.get(section, ()):
            lines.append(setting_line(setting))
    return lines


def _entry_of_key(key: str) -> tuple[str, str, str] | None:
    """Return (section, name of the entry, field) of a key such as "tiers[chat].ttft_ms".

    Returns None for a setting that is not in one of LISTS.
    """
    match = _ENTRY.fullmatch(key)
    if match is None or match[1] not in LISTS:
        return None
    return match[1], match[2], match[3]


def _settings_by_entry(differences: Sequence[Setting]) -> dict[tuple[str, str], list[Setting]]:
    """Return the settings of entries of lists by (section, name of the entry)."""
    by_entry: dict[tuple[str, str], list[Setting]] = {}
    for setting in differences:
        entry = _entry_of_key(setting.key)
        if entry is not None:
            section, name, _ = entry
            by_entry.setdefault((section, name), []).append(setting)
    return by_entry


def _entries_as_a_whole(
    differences: Sequence[Setting], entries: Mapping[str, Sequence[Mapping[str, Row]]]
) -> dict[str, set[str]]:
    """Return the names of the entries that a run lacks or that differ in many fields, by section.

    ``entries`` has those of each run, by section.
    """
    names: dict[str, set[str]] = {}
    for (section, name), settings in _settings_by_entry(differences).items():
        is_missing = any(name not in entries_of_run for entries_of_run in entries[section])
        if is_missing and name.isdecimal():  # an index means another entry in each run
            names.setdefault(section, set()).update(*entries[section])
        elif is_missing or len(settings) > MOST_FIELDS:
            names.setdefault(section, set()).add(name)
    return names


def _entries(scenario: Row, section: str) -> dict[str, Row]:
    """Return the entries of the list ``section`` of a scenario, by their names in settings' keys.

    In the key ``tiers[chat].ttft_ms`` it is "chat". An entry that is only a name becomes a row.
    """
    entries = value_at(scenario, section) or ()
    rows = [entry if isinstance(entry, dict) else {"name": entry} for entry in entries]
    return dict(zip(names_of(entries), rows, strict=True))


def _line_of_entries(section: ListSection, entries: Sequence[Mapping[str, Row]]) -> Line | None:
    """Return one line with the ``entries`` of each run, or None if their texts are equal."""
    words_by_run = []
    for entries_of_run in entries:
        unique = dict.fromkeys(map(section.words, entries_of_run.values()))
        words_by_run.append(list(unique))
    if all(words == words_by_run[0] for words in words_by_run):
        return None
    texts = []
    for words in words_by_run:
        more = len(words) - MOST_NAMES
        if more > 0:
            words = [*words[:MOST_NAMES], f"and {more} more"]
        texts.append("; ".join(words))
    return Line(section.title, _cells(texts))


def setting_line(row: Setting) -> Line:
    """Return a setting as a line of the table, with one cell per run."""
    scalar = next((scalar for scalar in SCALARS.values() if scalar.path == row.key), None)
    label = _label(row.key) if scalar is None else scalar.label
    in_ms = row.key.endswith("_ms")
    if in_ms:
        label = label.removesuffix(", ms")  # the values have their units
    texts = []
    for value in row.values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and in_ms:
            texts.append(milliseconds(value))
        elif is_number and scalar is not None and scalar.is_duration:
            texts.append(duration(value))
        elif is_number and scalar is not None and scalar.per:
            texts.append(figure(value / scalar.per))
        else:
            texts.append(_text(value))
    return Line(label, _cells(texts))


def _label(key: str) -> str:
    """Return the label of a setting, such as "Tier chat: TTFT" or "Objective: spare replicas".

    The first kind is of an entry in a list of the scenario, the second of any other key.
    """
    entry = _entry_of_key(key)
    if entry is None:
        first, _, rest = key.replace("option ", "Option: ").partition(".")
        return key_words(f"{first}: {rest}" if rest else first).replace("instance", "replica")
    list_path, name, field = entry
    section = LISTS[list_path]
    if name.isdecimal():  # an index, which people count from 1
        name = str(int(name) + 1)
    elif list_path == "policies" and name in TRAITS:
        name = TRAITS[name].label
    if not field:
        return f"{section.singular} {name}"
    first, _, rest = field.partition(".")
    fields = section.form().fields if section.form else {}
    words = str(fields[first].label) if first in fields else key_words(first)
    label = f"{section.singular} {name}: {words}"
    return f"{label}, {rest}" if rest else label


def _cells(texts: Sequence[str]) -> tuple[Cell, ...]:
    """Return a cell per run; those that differ from the first run are marked as changed."""
    return tuple(
        Cell(text or NOTHING, mark="changed" if text != texts[0] else "") for text in texts
    )


def _text(value: Any) -> str:
    """Return the value of a setting as text."""
    if isinstance(value, list):
        return ", ".join(parameter_text(item) for item in value)
    return "" if value is None else parameter_text(value)
