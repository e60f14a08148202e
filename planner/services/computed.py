"""Profiles that follow from a model's shape: sums of measured kernels, and rooflines."""

from __future__ import annotations

from collections.abc import Sequence

from planner import storage
from planner.catalogue.efficiency import efficiencies
from planner.catalogue.serving import serving_limits
from planner.errors import CatalogueError
from planner.models import Calibration
from planner.services.calibrations import KERNEL_FILE, kernel_file
from simulation.performance import profile as core
from simulation.performance.measured_kernels import Kernels, kernels
from simulation.performance.operator import operator_profile
from simulation.performance.roofline import roofline_profile
from simulation.performance.specs import Arrangement, GpuSpec, ModelSpec

COMPUTED = ("operator", "roofline")


def computed_profile(
    kind: str,
    model: ModelSpec,
    gpu: GpuSpec,
    arrangement: Arrangement,
    files: Sequence[int] = (),
    *,
    max_batch: int | None = None,
    max_batch_tokens: int | None = None,
    kv_capacity_tokens: int | None = None,
) -> core.Profile:
    """An operator profile from the uploaded kernel ``files``, or a roofline; raises CatalogueError
    or SimulationError saying what is missing."""
    if kind not in COMPUTED:
        raise CatalogueError(
            f"A {kind} profile needs benchmark rows; choose {' or '.join(COMPUTED)} without them."
        )
    if model.shape is None:
        raise CatalogueError(
            f"{model.name} is known by its memory alone; add it from its config.json, which says "
            "what it computes."
        )
    limits = serving_limits(
        model.shape,
        gpu,
        arrangement,
        max_batch=max_batch,
        max_batch_tokens=max_batch_tokens,
        kv_capacity_tokens=kv_capacity_tokens,
    )
    if kind == "roofline":
        return roofline_profile(model.shape, gpu, arrangement, efficiencies(), **limits)
    tables = kernel_tables(gpu.name, files)
    return operator_profile(model.shape, gpu, arrangement, tables, efficiencies(), **limits)


def kernel_calibrations(files: Sequence[int]) -> list[Calibration]:
    """The uploaded kernel files of these ids; raises CatalogueError where one is not."""
    rows = Calibration.objects.in_bulk(list(files))
    for number in files:
        if number not in rows or rows[number].kind != Calibration.Kind.KERNELS:
            raise CatalogueError(
                f"Calibration {number} holds no measured kernels; upload such a file and name it."
            )
    return [rows[number] for number in files]


def kernel_tables(gpu: str, files: Sequence[int]) -> Kernels:
    """All kernels measured on ``gpu`` in the files."""
    calibrations = kernel_calibrations(files)
    if not calibrations:
        raise CatalogueError(
            "An operator profile needs at least one file of measured kernels; upload it under "
            "Calibration, or take a roofline, which needs none."
        )
    found = []
    for row in calibrations:
        path = storage.folder(row.store) / KERNEL_FILE
        found += kernel_file(path, row.file_name, row.format).by_gpu.get(gpu, [])
    if not found:
        there = sorted({name for row in calibrations for name in row.report.get("gpus", [])})
        raise CatalogueError(
            f"These files hold no kernels measured on {gpu}; they are of {', '.join(there)}."
        )
    return kernels(gpu, "; ".join(row.source for row in calibrations), found)
