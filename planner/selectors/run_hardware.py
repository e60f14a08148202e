"""Load the user's own hardware as a run stored it, in the types of the core.

Later edits and fits do not change it.
"""

from dataclasses import replace
from typing import Any

from planner.errors import CatalogueError
from planner.inputs.catalogue.price_lists import OwnPrice
from planner.inputs.scenario.user_facts import KernelSource, UserFacts
from planner.models import Calibration, ProfileVersion
from planner.selectors.calibrations import CALIBRATIONS, KERNEL_FILE
from planner.selectors.hardware_rows import profile_of, spec_of
from planner.selectors.measured_corrections import measurements_of_files
from planner.storage import row_arrays
from simulation.performance.estimate.measured_corrections import Times
from simulation.performance.specs import GpuSpec, ModelSpec, Provenance

Resolved = dict[str, Any]


def stored_hardware(resolved: Resolved) -> UserFacts:
    """Return the user's hardware facts, as a run stored them, for ``build_hardware``."""
    gpus = resolved.get("gpus") or {}
    models = resolved.get("models") or {}
    stored_profiles = resolved.get("profiles") or {}
    rows = ProfileVersion.objects.select_related("profile").in_bulk(
        [r["id"] for r in stored_profiles.values()]
    )
    for name, version in stored_profiles.items():
        if version["id"] not in rows:
            raise CatalogueError(
                f"Profile {name}, version {version['version']}, has been removed. Choose another."
            )
    facts = UserFacts(
        gpus={n: spec_of(GpuSpec, n, g["facts"], _provenance(g)) for n, g in gpus.items()},
        models={n: spec_of(ModelSpec, n, m["facts"], _provenance(m)) for n, m in models.items()},
    )
    return replace(
        facts,
        own=_own_corrections(facts, resolved.get("measured") or []),
        profiles={
            name: profile_of(rows[version["id"]]) for name, version in stored_profiles.items()
        },
        prices={
            (row["region"], row["gpu"]): OwnPrice(**row)
            for row in (resolved.get("prices") or {}).get("rows", [])
        },
        kernels={
            gpu: tuple(_kernel_source(number) for number in files)
            for gpu, files in (resolved.get("kernels") or {}).items()
        },
    )


def _own_corrections(facts: UserFacts, files: list[dict[str, Any]]) -> Times | None:
    """Return the corrections from the measured rows that the run stored, or None."""
    measured = measurements_of_files(files, facts) if files else None
    return measured.times if measured else None


def _kernel_source(number: int) -> KernelSource:
    """Return the source of measured kernels with this id.

    A removed file gets a path that does not exist, so that an error appears only if it is read.
    """
    row = Calibration.objects.filter(pk=number).first()
    if row is None:
        gone = row_arrays.folder(f"{CALIBRATIONS}/{number}") / KERNEL_FILE
        return KernelSource(gone, f"calibration {number}", "auto", "")
    path = row_arrays.local_path(row.store) / KERNEL_FILE
    return KernelSource(path, row.file_name, row.format, row.source)


def _provenance(facts: dict[str, Any]) -> Provenance:
    return Provenance(facts["kind"], facts["source"])
