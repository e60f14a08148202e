"""List the names that the scenario form offers: built-in ones and those of the document."""

from dataclasses import dataclass
from typing import Any

from planner.inputs import catalogue
from planner.inputs.catalogue.rule_based_profiles import modelled_profiles
from planner.models import Trace
from planner.selectors.profiles import profiles_list
from planner.selectors.traces import traces_list
from planner.web.forms.document import rows_of
from planner.web.forms.profile_choice import ProfileChoice
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


def names_of(data: dict[str, Any]) -> Names:
    """Return the names that the form for the document ``data`` offers, also the catalogue's."""
    profiles = rows_of(data, "profiles")
    own_profiles = [
        ProfileChoice(profile.model, profile.gpu, profile.tp, profile.name)
        for profile in profiles_list()
        if profile.own
    ]
    labels = {ProfileChoice.of(row): _label(row) for row in profiles}
    for choice in own_profiles:
        labels.setdefault(choice, choice.label)
    for key, profile in sorted(catalogue.profiles().items()):
        choice = ProfileChoice(*key)
        labels.setdefault(choice, f"{choice.label} ({_basis(profile.provenance)})")
    for computed in modelled_profiles():
        choice = ProfileChoice.of(
            {"model": computed.model, "gpu": computed.gpu, "tp": computed.tp, "kind": computed.kind,
             "precision": computed.precision}
        )  # fmt: skip
        labels.setdefault(choice, choice.label)
    groups: dict[str, list[tuple[str, str]]] = {}
    for choice, label in labels.items():
        groups.setdefault(choice.model, []).append((choice.encode(), label))
    return Names(
        profiles=[("", "choose"), *groups.items()],
        models=_unique(row.get("model") for row in profiles),
        gpus=_unique(row.get("gpu") for row in profiles),
        regions=_unique(row.get("name") for row in rows_of(data, "regions")),
        built_in_regions=sorted(catalogue.regions()),
        tiers=_unique(row.get("name") for row in rows_of(data, "tiers")),
        traces=list(traces_list().filter(state=Trace.State.READY).values_list("name", flat=True)),
    )


def _label(row: dict[str, Any]) -> str:
    """Return a label for a profile that the scenario itself describes."""
    choice = ProfileChoice.of(row)
    return choice.label + (f", {choice.role}" if choice.role else "")


def _basis(source: Provenance) -> str:
    """Return the kind of source of a built-in profile, with the engine if it is named."""
    return ", ".join(filter(None, (source.kind, catalogue.engine_of(source))))


def _unique(names: Any) -> list[str]:
    return list(dict.fromkeys(str(name) for name in names if name))
