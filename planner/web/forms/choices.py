"""Names to choose from in the scenario form: built-in ones and those of the document itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner import catalogue
from planner.models import Trace
from planner.selectors.profiles import profiles_list
from planner.selectors.traces import traces_list
from planner.web.forms.document import APART, profile_key, rows_of

Choices = list[tuple[str, Any]]
WIDTHS = {  # of an arrangement, and what they are called
    "tp": "Tensor parallel",
    "pp": "Pipeline stages",
    "attention_dp": "Attention data parallel",
    "moe_tp": "Experts, tensor parallel",
    "moe_ep": "Experts, expert parallel",
}


@dataclass(frozen=True, slots=True)
class Names:
    """Lists behind the fields of the form; ``profiles`` is grouped by model for a select."""

    profiles: Choices
    models: list[str]
    gpus: list[str]
    regions: list[str]
    built_in_regions: list[str]
    tiers: list[str]
    traces: list[str]


def names_of(data: dict[str, Any]) -> Names:
    """What the form of the document ``data`` offers."""
    built_in = [{"model": m, "gpu": g, "tp": tp} for m, g, tp in sorted(catalogue.profiles())]
    own = rows_of(data, "profiles")
    kept = [
        {"model": one.model, "gpu": one.gpu, "tp": one.tp, "name": one.name}
        for one in profiles_list()
        if one.own
    ]
    groups: dict[str, dict[str, str]] = {}
    for row in [*own, *kept, *built_in]:
        label = f"{row.get('model')} on {row.get('gpu')} × {row.get('tp', 1)}"
        if row.get("name"):
            version = f", version {row['version']}" if row.get("version") else ", newest version"
            label += f" ({row['name']}{version})"
        elif row.get("kind") == "roofline":
            label += " (roofline)"
        if row.get("role") in APART:
            label += f", {row['role']}"
        groups.setdefault(str(row.get("model")), {})[profile_key(row)] = label
    return Names(
        profiles=[
            ("", "choose"),
            *((model, list(kinds.items())) for model, kinds in groups.items()),
        ],
        models=_unique(row.get("model") for row in own),
        gpus=_unique(row.get("gpu") for row in own),
        regions=_unique(row.get("name") for row in rows_of(data, "regions")),
        built_in_regions=sorted(catalogue.regions()),
        tiers=_unique(row.get("name") for row in rows_of(data, "tiers")),
        traces=list(traces_list().filter(state=Trace.State.READY).values_list("name", flat=True)),
    )


def _unique(names: Any) -> list[str]:
    return list(dict.fromkeys(str(name) for name in names if name))
