"""Define the columns of a fleet: GPU types with an arrangement and a role.

If every model has one profile on a GPU type, the type itself is the column. If a model has several
profiles, each is a column. Examples are variants by tensor parallelism or precision, and a
prefill and a decode pool. Columns of one type share its GPUs.

If a region offers a type as spot, its columns exist twice. Spot GPUs are separate types, after all
others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.inputs.scenario.schema import Profile
from planner.schema_types import ROLES
from simulation.performance.profile import Profile as Speed

SHOWN = {core: shown for shown, core in ROLES.items()}
ModelColumn = tuple[int, int]  # model, column
STAGES = {"both": 0, "prefill": 1, "decode": 2}  # codes of PlanningProblem.stages


@dataclass(frozen=True, slots=True)
class Column:
    """A column (index ``g``) of the plan's arrays: a GPU type, GPUs per instance, and a role."""

    gpu: int  # index of the GPU type
    tp: int | None  # GPUs of an instance; None: it differs between models
    role: str  # one of simulation.fleet.ROLES
    label: str
    spot: bool = False


@dataclass(frozen=True, slots=True)
class Arrangements:
    """The columns of a fleet, with the section and the speed of each model in its columns."""

    columns: tuple[Column, ...]
    sections: dict[ModelColumn, Profile]
    speeds: dict[ModelColumn, Speed]

    def with_spot(self, spot_types: Mapping[int, int]) -> Arrangements:
        """Return these columns, then a spot column for each with a GPU type offered as spot.

        ``spot_types`` maps the index of an owned GPU type to that of the same type as spot. A spot
        column has the sections and speeds of its owned column.
        """
        columns, sections, speeds = list(self.columns), dict(self.sections), dict(self.speeds)
        for g, column in enumerate(self.columns):
            if column.gpu not in spot_types:
                continue
            spot = len(columns)  # index of the new column
            for m in [m for m, owned in self.speeds if owned == g]:
                sections[m, spot] = sections[m, g]
                speeds[m, spot] = speeds[m, g]
            spot_type, label = spot_types[column.gpu], spot_name(column.label)
            columns.append(replace(column, gpu=spot_type, label=label, spot=True))
        return Arrangements(tuple(columns), sections, speeds)


def arrangements_of(
    sections: Sequence[Profile], speeds: Sequence[Speed], models: Sequence[str], gpus: Sequence[str]
) -> Arrangements:
    """Return the columns of a fleet, and the section and speed of each model in its columns.

    A column is a GPU type with an arrangement and a role. ``sections`` are the rows of
    ``profiles``, ``speeds`` their speed profiles, and ``models`` and ``gpus`` the names of models
    and GPU types. Profiles of one GPU type and role share a column if each is for another model.
    """
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)  # indices of sections
    for i, section in enumerate(sections):
        groups[section.gpu, ROLES[section.role]].append(i)
    columns: list[Column] = []
    section_of_column: dict[ModelColumn, Profile] = {}
    speed_of_column: dict[ModelColumn, Speed] = {}
    column_of_section = [0] * len(sections)
    for (gpu, role), in_group in groups.items():
        for label, in_column in _by_label(in_group, sections, speeds).items():
            widths = {speeds[i].tp for i in in_column}
            tp = widths.pop() if len(widths) == 1 else None
            for i in in_column:
                column_of_section[i] = len(columns)
            columns.append(Column(gpus.index(gpu), tp, role, with_role(label, role)))
    for i, section in enumerate(sections):
        key = models.index(section.model), column_of_section[i]
        section_of_column[key], speed_of_column[key] = section, speeds[i]
    return Arrangements(tuple(columns), section_of_column, speed_of_column)


def _by_label(
    in_group: Sequence[int], sections: Sequence[Profile], speeds: Sequence[Speed]
) -> dict[str, list[int]]:
    """Return the sections of each column of one GPU type and role, by the column's label.

    ``in_group`` are their indices. If each is for another model, they are one column.
    """
    if len({sections[i].model for i in in_group}) == len(in_group):
        return {sections[in_group[0]].gpu: [*in_group]}
    by_label: dict[str, list[int]] = defaultdict(list)
    for i in in_group:
        by_label[arrangement(sections[i], speeds[i])].append(i)
    return by_label


def spot_name(name: str) -> str:
    """Return the name of a GPU type or arrangement as spot."""
    return f"{name}, spot"


def with_role(name: str, role: str) -> str:
    """Return the name of an arrangement with its role, unless that is "both"."""
    return name if role == "both" else f"{name}, {role}"


def arrangement(section: Profile, speed: Speed) -> str:
    """Return a profile's arrangement and all unusual settings in words, such as "4 x H100, fp8"."""
    parts = [f"{speed.tp} x {section.gpu}"]
    for name in ("pp", "attention_dp", "moe_tp", "moe_ep"):
        if getattr(section, name) > 1:
            parts.append(f"{name} {getattr(section, name)}")
    if (split := section.attention_ffn) is not None:
        parts.append(f"{split.attention} attention and {split.ffn} FFN")
    if section.precision != "bf16":
        parts.append(section.precision)
    if section.kv_precision != "bf16":
        parts.append(f"{section.kv_precision} KV cache")
    if section.lora_rank is not None:
        parts.append(f"{section.lora_active} LoRA adapters of rank {section.lora_rank}")
    if section.engine is not None:
        parts.append(section.engine)
    if section.recv_interval is not None:
        parts.append(f"recv_interval {section.recv_interval:g}")
    if section.power_cap is not None:
        parts.append(f"capped at {section.power_cap:.0%} power")
    if section.name is not None:
        version = f" version {section.version}" if section.version else ""
        parts.append(f"{section.name}{version}")
    return ", ".join(parts)
