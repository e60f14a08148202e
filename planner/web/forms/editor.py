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
    for choice, label in _built_in_profiles().items():
        labels.setdefault(choice, label)
    groups: dict[str, list[tuple[str, str]]] = {}
    for choice, label in labels.items():
        groups.setdefault(choice.model, []).append((choice.encode(), label))
    return [("", "choose"), *groups.items()]


@cache
def _built_in_profiles() -> dict[ProfileChoice, str]:
    """Return the label of each profile of the catalogue, which does not change."""
    labels: dict[ProfileChoice, str] = {}
    for (model, gpu, tp), profile in sorted(catalogue.profiles().items()):
        choice = ProfileChoice(model, gpu, tp)
        engine = proper_name(catalogue.engine_of(profile.provenance))
        source = ", ".join(filter(None, (profile.provenance.kind, engine)))
        labels[choice] = f"{choice.label} ({source})"
    for computed in modelled_profiles():
        choice = ProfileChoice.of(
            {"model": computed.model, "gpu": computed.gpu, "tp": computed.tp, "kind": computed.kind,
             "precision": computed.precision}
        )  # fmt: skip
        labels.setdefault(choice, choice.label)
    return labels


def _profile_label(row: Row) -> str:
    """Return a label for a profile that the scenario itself describes."""
    choice = ProfileChoice.of(row)
    return choice.label + (f", {choice.role}" if choice.role else "")


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
    """Return the errors of a form, each with its field.

    ``row_label`` stands before the label of a field, such as "Traffic, row 2: ".
    """
    faults = []
    for name, errors in form.errors.items():
        field_id, label = "", row_label.removesuffix(": ")  # of an error of the whole row
        if name in form.fields:
            field_id, label = form[name].id_for_label, f"{row_label}{form[name].label}"
        faults += [Fault(field_id, label, str(words)) for words in errors]
    return faults


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
        """Build the forms for the document ``text``; raise ScenarioError if they cannot show it.

        ``posted`` are the values of a sent form; None: those of the document.
        """
        self.text = text
        self.added = (posted or {}).get("action", "").removeprefix("add-")  # section of a new row
        self.data = yaml.outline(text)
        if unknown := yaml.unknown_keys(text):
            raise ScenarioError("\n".join(unknown))
        # Posted forms get no initial rows: a bound row counts as empty if nothing was posted.
        rows = mapping.row_values(self.data) if posted is None else {}
        has_default_days = mapping.value_at(self.data, "test_days") is None
        if has_default_days and sum(map(len, rows.values())) > MAX_ROWS:
            rows.pop("test_days", None)  # defaults need no rows
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
        for name, rows in self.sections.items():
            filled = [values for _, values in rows.filled_rows()]
            changes |= mapping.row_changes(self.data, name, filled)
        return yaml.edit(self.text, mapping.with_moved_traffic(self.data, changes))

    def attach(self, problem: Exception) -> list[str]:
        """Attach the lines of an error to their fields; return those without a field."""
        rest = []
        for line in str(problem).splitlines():
            match = _FAULT.match(line)
            is_attached = match and self._attach_to_field(match["path"], match["words"])
            if not is_attached:
                rest.append(line)
        return rest

    def faults(self) -> list[Fault]:
        """Return the errors of all fields, in the order of the page."""
        faults = _faults(self.study, "")
        for name, rows in self.sections.items():
            title, _ = TITLES[name]
            if rows.is_bound:
                for number, form in enumerate(rows.forms, start=1):
                    faults += _faults(form, f"{title}, row {number}: ")
        return faults

    def display_sections(self) -> list[ShownSection]:
        """Return the sections in the order of the page."""
        shown = []
        for name, (title, hint) in TITLES.items():
            rows = self.sections[name]
            count = str(sum(form.has_changed() or bool(form.initial) for form in rows.forms))
            required = mapping.required_test_days(self.data) if name == "test_days" else None
            shown.append(
                ShownSection(
                    name=name,
                    title=title,
                    hint=hint,
                    rows=rows,
                    count=count if required is None else f"{required} required of {count}",
                    open=name == self.added or (rows.is_bound and any(rows.errors)),
                    wraps=len(rows.empty_form.visible_fields()) > MAX_COLUMNS,
                )
            )
        return shown

    def _attach_to_field(self, path: str, words: str) -> bool:
        """Attach an error to the field of ``path`` in the document; return whether it exists.

        A path is that of a scalar, or such as ``tiers[0].ttft_ms`` of a row in a section.
        """
        for name, scalar in SCALARS.items():
            if path == scalar.path or path.startswith(f"{scalar.path}["):
                self.study.add_error(name, ValidationError(words))
                return True
        match = _SECTION.match(path)
        if match is None:
            return False
        section_of_list = {path: section for section, path in mapping.LISTS.items()}
        section = section_of_list.get(match["list"])
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
        rows = self.sections[section]
        # Form rows with one name form one region, so the first of them stands for it.
        form_of_item: dict[Any, Any] = {}
        for form_index, values in rows.filled_rows():
            key = values["name"] if section == "regions" else form_index
            form_of_item.setdefault(key, rows.forms[form_index])
        forms_in_order = list(form_of_item.values())
        return forms_in_order[index] if index < len(forms_in_order) else None
