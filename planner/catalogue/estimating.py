"""The calibration of estimates, and what it was checked against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from planner.catalogue.files import read
from simulation.performance.estimate.calibration import Calibration
from simulation.performance.estimate.errors import Cell, ErrorTable
from simulation.performance.estimate.own import Likeness, Stated


@dataclass(frozen=True, slots=True)
class Alike:
    """How alike the errors of estimates of one quantity are, and how far rows then lie."""

    likeness: Likeness
    stated: Stated


@dataclass(frozen=True, slots=True)
class EstimateFit:
    """``estimate.yaml``: errors by what the fit that was scored had seen: "seen" (all of it), or
    without the engine's "version", the "source" that measured, the "model", the "gpu" or "both" of
    the last."""

    calibration: Calibration
    source: str
    models: frozenset[str]  # names of the catalogue that were measured
    gpus: frozenset[str]
    versions: frozenset[str]  # of engines, "vllm 0.19.0"
    errors: Mapping[str, ErrorTable]
    ranges: Mapping[str, tuple[float, float]]  # of isl, osl and concurrency that were measured
    alike: Mapping[str, Alike]  # by "tbt" and "ttft"

    def basis(self, model: str, gpu: str, version: str = "") -> str:
        """Which of the errors holds for a model on a GPU; ``version`` with its engine, as above."""
        missing = (model not in self.models, gpu not in self.gpus)
        basis = {(0, 0): "seen", (1, 0): "model", (0, 1): "gpu", (1, 1): "both"}[missing]
        new = version and version not in self.versions
        return "version" if new and basis == "seen" else basis

    def outside(self, values: Mapping[str, float]) -> list[str]:
        """What of ``values`` lies outside the measured ranges, in words."""
        faults = []
        for name, (low, high) in self.ranges.items():
            if not low <= values[name] <= high:
                faults.append(
                    f"{name} {values[name]:g} is outside the measured {low:g} to {high:g}"
                )
        return faults


@cache
def estimate_fit() -> EstimateFit:
    """The fit that the project ships, parsed once."""
    document = read("estimate")
    return EstimateFit(
        calibration=Calibration().with_values(document["values"]),
        source=document["source"],
        models=frozenset(document["models"]),
        gpus=frozenset(document["gpus"]),
        versions=frozenset(document["versions"]),
        errors={
            basis: ErrorTable({key: Cell(**cell) for key, cell in cells.items()})
            for basis, cells in document["errors"].items()
        },
        ranges={name: (low, high) for name, (low, high) in document["ranges"].items()},
        alike={
            name: Alike(
                Likeness(**likeness["parts"]),
                Stated(tuple(likeness["half"]), tuple(likeness["nine"])),
            )
            for name, likeness in document["likeness"].items()
        },
    )
