"""Edit a whole scenario: its fields, its rows, and the fields that errors in the YAML belong to."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from django import forms
from django.core.exceptions import ValidationError

from planner.domain.formats import proper_name
from planner.errors import ScenarioError
from planner.inputs import catalogue
from planner.inputs.catalogue.rule_based_profiles import modelled_profiles
from planner.inputs.scenario import document as yaml
from planner.models import Trace
from planner.selectors.profiles import profiles_list
from planner.selectors.traces import traces_list
from planner.web.forms import document as mapping
from planner.web.forms.document import Row, rows_of
from planner.web.forms.fields import SCALARS
from planner.web.forms.profile_choice import ProfileChoice
from planner.web.forms.scenario import FORMSETS, RowSet, StudyForm
from planner.web.forms.widgets import dress
from simulation.performance.specs import Provenance

Choices = list[tuple[str, Any]]


@dataclass(frozen=True, slots=True)
class Names:
    """The names in the select fields of the form; ``profiles`` is grouped by model."""

    profiles: Choices
    models: list[str]
    gpus: list[str]
    regions: list[str]
    built_in_regions: list[str]
    tiers: list[str]
    traces: list[str]


def names_of(data: Row) -> Names:
    """Return the names that the form for the document ``data`` offers.

    Profiles are those of the document, of the user and of the catalogue.
    """
    profiles = rows_of(data, "profiles")
    ready_traces = traces_list().filter(state=Trace.State.READY)
    return Names(
        profiles=_profile_choices(profiles),
        models=_unique(row.get("model") for row in profiles),
        gpus=_unique(row.get("gpu") for row in profiles),
        regions=_unique(row.get("name") for row in rows_of(data, "regions")),
        built_in_regions=sorted(catalogue.regions()),
        tiers=_unique(row.get("name") for row in rows_of(data, "tiers")),
        traces=list(ready_traces.values_list("name", flat=True)),
    )


def _profile_choices(profiles: Sequence[Row]) -> Choices:
    """Return the profiles to choose from, grouped by model: the document's, own, built-in ones.

    ``profiles`` are the rows of the document.
    """
    labels = {ProfileChoice.of(row): _profile_label(row) for row in profiles}
    for profile in profiles_list():
        if profile.own:
            choice = ProfileChoice(profile.model, profile.gpu, profile.tp, profile.name)
            labels.setdefault(choice, choice.label)
    lines = [(choice.model, choice.encode(), label) for choice, label in labels.items()]
    known = {encoded for _, encoded, _ in lines}
    for line in _built_in_profiles():
        if line[1] not in known:
            lines.append(line)
    groups: dict[str, list[tuple[str, str]]] = {}
    for model, encoded, label in lines:
        groups.setdefault(model, []).append((encoded, label))
    return [("", "choose"), *groups.items()]


@cache
def _built_in_profiles() -> list[tuple[str, str, str]]:
    """Return model, code and label of each profile of the catalogue, which does not change."""
    labels: dict[ProfileChoice, str] = {}
    for key, profile in sorted(catalogue.profiles().items()):
        choice = ProfileChoice(*key)
        labels[choice] = f"{choice.label} ({_basis(profile.provenance)})"
    for computed in modelled_profiles():
        choice = ProfileChoice.of(
            {"model": computed.model, "gpu": computed.gpu, "tp": computed.tp, "kind": computed.kind,
             "precision": computed.precision}
        )  # fmt: skip
        labels.setdefault(choice, choice.label)
    return [(choice.model, choice.encode(), label) for choice, label in labels.items()]


def _profile_label(row: Row) -> str:
    """Return a label for a profile that the scenario itself describes."""
    choice = ProfileChoice.of(row)
    return choice.label + (f", {choice.role}" if choice.role else "")


def _basis(source: Provenance) -> str:
    """Return the kind of source of a built-in profile, with the engine if it is named."""
    return ", ".join(filter(None, (source.kind, proper_name(catalogue.engine_of(source)))))


def _unique(names: Iterable[Any]) -> list[str]:
    """Return the names that are not empty, each once, in order."""
    return list(dict.fromkeys(str(name) for name in names if name))


# An error of a scenario, "FILE, line 7: PATH: WORDS", and a path in a list, "tiers[0].ttft_ms".
_FAULT = re.compile(r"^.*?, line \d+: (?P<path>[\w.\[\]]+): (?P<words>.*)$")
_SECTION = re.compile(r"^(?P<list>[a-z.]+)\[(?P<index>\d+)\]\.?(?P<rest>.*)$")

TITLES = {
    "profiles": ("Deployments", "Built-in profiles, and profiles defined in this scenario."),
    "regions": ("Regions and their GPUs", "One row per region and GPU type."),
    "tiers": ("Service tiers", "Latency limits, and the share of requests that must meet them."),
    "sources": (
        "Traffic",
        ("Traces by model and region, with shares such as “east 60 %, west 40 %”."),
    ),
    "today": ("Current fleet", "Current replicas. Savings are compared with them."),
    "test_days": (
        "Test days",
        "A recommended policy passes all required days. Expected cost: weighted mean of the days.",
    ),
}


def section_of(problem: str) -> str:
    """Return the section of the form that has the setting which a run's problem names; "" if none.

    The problem begins with the address of the setting, or names a tier.
    """
    address = re.match(r"(?:traffic\.|fleet\.)?(\w+)[.:[]", problem)
    if address and address[1] in TITLES:
        return address[1]
    return "tiers" if re.search(r"\btiers?\b", problem) else ""


MAX_ROWS = 60  # Django's limit on the fields of one form allows about this many
MAX_COLUMNS = 9  # most columns of a row on one line at 1280 px, with its delete box


class Fault(NamedTuple):
    """An error of a form field, with the field's HTML id; "" if it concerns a whole row."""

    id: str
    label: str
    words: str


def _faults(form: forms.BaseForm, row_label: str) -> list[Fault]:
    """Return the errors of a form with the field of each; "" as ``id``: of the whole form."""
    return [
        Fault(form[name].id_for_label, f"{row_label}{form[name].label}", str(words))
        if name in form.fields
        else Fault("", row_label.removesuffix(": "), str(words))
        for name, errors in form.errors.items()
        for words in errors
    ]


@dataclass(frozen=True, slots=True)
class ShownSection:
    """A list section of the page: its form rows, how many are filled, and how it is shown."""

    name: str
    title: str
    hint: str
    rows: RowSet
    count: str  # of filled rows; of test days, those that the level of assurance requires
    open: bool
    wraps: bool  # has more columns than fit


class Editor:
    """All forms for one scenario document; they are bound to ``posted`` if given."""

    def __init__(self, text: str, posted: Mapping[str, Any] | None = None) -> None:
        self.text = text
        self.added = (posted or {}).get("action", "").removeprefix("add-")  # section of a new row
        self.data = yaml.outline(text)
        if unknown := yaml.unknown_keys(text):
            raise ScenarioError("\n".join(unknown))
        # A bound row counts as empty if nothing was posted, not if nothing was changed.
        rows = mapping.row_values(self.data) if posted is None else {}
        if mapping.look(self.data, "test_days") is None and sum(map(len, rows.values())) > MAX_ROWS:
            rows.pop("test_days", None)  # the defaults, which need no rows
        if sum(map(len, rows.values())) > MAX_ROWS:
            raise ScenarioError(
                f"This scenario has more than the {MAX_ROWS} rows that the form can hold. "
                "Edit it as YAML."
            )
        self.names: Names = names_of(self.data)
        self.study = dress(StudyForm(posted, initial=mapping.study_values(self.data)))
        self.sections: dict[str, RowSet] = {
            name: kind(posted, initial=rows.get(name), prefix=name)
            for name, kind in FORMSETS.items()
        }
        self.sections["profiles"].profile_choices = self.names.profiles

    def is_valid(self) -> bool:
        """Return whether all forms are valid; each is checked, so that all errors show."""
        return all([self.study.is_valid(), *(rows.is_valid() for rows in self.sections.values())])

    def document(self) -> str:
        """Return the document with the form's values; all other parts stay, comments too."""
        changes = mapping.study_changes(self.data, self.study.cleaned_data)
        for name in self.sections:
            changes |= mapping.row_changes(
                self.data, name, [row for _, row in self._filled_rows(name)]
            )
        return yaml.edit(self.text, mapping.with_moved_traffic(self.data, changes))

    def attach(self, problem: Exception) -> list[str]:
        """Attach the lines of an error to their fields; return those without a field."""
        rest = []
        for line in str(problem).splitlines():
            match = _FAULT.match(line)
            if not (match and self._attach_to_field(match["path"], match["words"])):
                rest.append(line)
        return rest

    def faults(self) -> list[Fault]:
        """Return the errors of all fields, in the order of the page."""
        return [
            *_faults(self.study, ""),
            *(
                fault
                for name, rows in self.sections.items()
                if rows.is_bound
                for i, form in enumerate(rows.forms)
                for fault in _faults(form, f"{TITLES[name][0]}, row {i + 1}: ")
            ),
        ]

    def display_sections(self) -> list[ShownSection]:
        """Return the sections in the order of the page."""
        return [
            ShownSection(
                name=name,
                title=title,
                hint=hint,
                rows=rows,
                count=self._count(name, rows),
                open=name == self.added or (rows.is_bound and any(rows.errors)),
                wraps=len(rows.empty_form.visible_fields()) > MAX_COLUMNS,
            )
            for name, (title, hint) in TITLES.items()
            for rows in [self.sections[name]]
        ]

    def _count(self, section: str, rows: RowSet) -> str:
        """Return how many rows of a section are filled, and how many test days are required."""
        count = sum(form.has_changed() or bool(form.initial) for form in rows.forms)
        if section != "test_days":
            return str(count)
        required = mapping.required_test_days(self.data)
        return str(count) if required is None else f"{required} required of {count}"

    def _filled_rows(self, section: str) -> list[tuple[int, Row]]:
        """Return the form rows of a section that go into the document, each with its index."""
        return self.sections[section].filled_rows()

    def _attach_to_field(self, path: str, words: str) -> bool:
        """Attach an error to the field of ``path`` in the document; return whether it exists."""
        for name, scalar in SCALARS.items():
            if path == scalar.path or path.startswith(f"{scalar.path}["):
                self.study.add_error(name, ValidationError(words))
                return True
        match = _SECTION.match(path)
        if match is None:
            return False
        section = next(
            (name for name, address in mapping.LISTS.items() if address == match["list"]), None
        )
        row = self._row(section, int(match["index"])) if section else None
        if row is None:
            return False
        field_of_key = {"input_tokens": "input_mean", "output_tokens": "output_mean"}
        names = [field_of_key.get(key, key) for key in re.split(r"[.\[]", match["rest"])]
        field = next((name for name in names if name in row.fields), None)
        row.add_error(field, ValidationError(words))
        return True

    def _row(self, section: str, index: int) -> Any:
        """Return the form row that became item ``index`` in the document's list, or None."""
        forms, rows_left = self.sections[section].forms, self._filled_rows(section)
        if section == "regions":  # rows with one name form one region; take the first of them
            first_of_region = {row["name"]: (i, row) for i, row in reversed(rows_left)}
            names = dict.fromkeys(row["name"] for _, row in rows_left)
            rows_left = [first_of_region[name] for name in names]
        return forms[rows_left[index][0]] if index < len(rows_left) else None
