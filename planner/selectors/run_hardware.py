"""Load the user's own hardware as a run stored it.

Later edits and fits do not change it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from planner.domain.serialise import from_json
from planner.errors import CatalogueError
from planner.inputs.catalogue.price_lists import OwnPrice
from planner.inputs.scenario.user_facts import KernelSource, UserFacts
from planner.models import Calibration, ProfileVersion
from planner.selectors.hardware_rows import profile_of, spec_of
from planner.selectors.measured_corrections import (
    CALIBRATIONS,
    KERNEL_FILE,
    Row,
    measurements_of_files,
)
from planner.storage import row_arrays
from simulation.performance.specs import GpuSpec, ModelSpec, Provenance


@dataclass(frozen=True, slots=True)
class StoredSpec:
    """A GPU type or an LLM that the user added, as it was when a run was created."""

    facts: dict[str, Any]
    kind: str  # of its provenance
    source: str

    @property
    def provenance(self) -> Provenance:
        return Provenance(self.kind, self.source)


@dataclass(frozen=True, slots=True)
class StoredVersion:
    """A version of a profile; ``id`` is that of its row."""

    version: int
    id: int


@dataclass(frozen=True, slots=True)
class StoredPrices:
    """A price list of the user, as it was when a run was created."""

    name: str
    rows: tuple[OwnPrice, ...]


@dataclass(frozen=True, slots=True)
class ResolvedHardware:
    """The user's own hardware that a scenario names; ``Run.resolved`` has it as JSON."""

    gpus: dict[str, StoredSpec] = field(default_factory=dict)
    models: dict[str, StoredSpec] = field(default_factory=dict)
    profiles: dict[str, StoredVersion] = field(default_factory=dict)
    kernels: dict[str, list[int]] = field(default_factory=dict)  # ids of files by GPU type
    measured: list[Row] = field(default_factory=list)  # name and rows of each measured file
    prices: StoredPrices | None = None


def stored_hardware(resolved: Mapping[str, Any]) -> UserFacts:
    """Return the user's hardware facts from ``Run.resolved``; raise as ``hardware_of``."""
    return hardware_of(from_json(ResolvedHardware, resolved))


def hardware_of(resolved: ResolvedHardware) -> UserFacts:
    """Return the user's hardware facts; raise CatalogueError if a profile was removed."""
    versions = ProfileVersion.objects.select_related("profile")
    rows = versions.in_bulk([stored.id for stored in resolved.profiles.values()])
    for name, stored in resolved.profiles.items():
        if stored.id not in rows:
            raise CatalogueError(
                f"Profile {name}, version {stored.version}, has been removed. Choose another."
            )
    facts = UserFacts(
        gpus={
            name: spec_of(GpuSpec, name, gpu.facts, gpu.provenance)
            for name, gpu in resolved.gpus.items()
        },
        models={
            name: spec_of(ModelSpec, name, model.facts, model.provenance)
            for name, model in resolved.models.items()
        },
    )
    measured = measurements_of_files(resolved.measured, facts) if resolved.measured else None
    prices = resolved.prices.rows if resolved.prices else ()
    return replace(
        facts,
        own=measured.times if measured else None,
        profiles={name: profile_of(rows[stored.id]) for name, stored in resolved.profiles.items()},
        prices={(price.region, price.gpu): price for price in prices},
        kernels={gpu: tuple(map(_kernel_source, ids)) for gpu, ids in resolved.kernels.items()},
    )


def _kernel_source(number: int) -> KernelSource:
    """Return the source of the measured kernels in the calibration with this id.

    If it was removed, the path does not exist, so that an error appears only if it is read.
    """
    row = Calibration.objects.filter(pk=number).first()
    if row is None:
        missing_path = row_arrays.folder(f"{CALIBRATIONS}/{number}") / KERNEL_FILE
        return KernelSource(missing_path, f"calibration {number}", "auto", "")
    path = row_arrays.local_path(row.store) / KERNEL_FILE
    return KernelSource(path, row.file_name, row.format, row.source)
