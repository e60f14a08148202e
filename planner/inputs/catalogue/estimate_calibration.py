"""Load the calibration of estimates with its validation, and efficiency factors of operators."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache

from planner.inputs.catalogue.files import read
from planner.inputs.catalogue.hardware import gpu as gpu_named
from simulation.performance.efficiency import NEAREST, Efficiencies, Efficiency
from simulation.performance.estimate.calibration import Calibration, Cell, ErrorTable, release_order
from simulation.performance.estimate.measured_corrections import ErrorCovariance, ErrorQuantiles
from simulation.performance.profile import Check
from simulation.performance.specs import GpuSpec

RANGE_NAMES = {"isl": "input tokens", "osl": "output tokens", "concurrency": "requests in flight"}


@dataclass(frozen=True, slots=True)
class CorrectionModel:
    """The errors of estimates of one quantity, for corrections by measurements."""

    likeness: ErrorCovariance  # how errors of similar deployments correlate
    stated: ErrorQuantiles  # the quantiles of an error that remains


@dataclass(frozen=True, slots=True)
class EstimateFit:
    """The content of ``estimate.yaml``: constants of the speed estimate, fitted to measurements.

    ``errors`` has one table per cross-validation: the relative errors on data that the fit had not
    used. The key says what was new: "seen" (nothing), "version" (of the engine), "source" (of the
    measurements), "model", "gpu", "both" (model and GPU), or "vendor". "vendor_gpu" is a GPU type
    of a vendor without measured kernels, but with other measured GPU types.
    """

    calibration: Calibration
    source: str
    models: frozenset[str]  # catalogue names with measurements
    gpus: frozenset[str]
    versions: frozenset[str]  # engine versions with measurements, such as "vllm 0.19.0"
    published: date  # of those measurements
    errors: Mapping[str, ErrorTable]
    ranges: Mapping[str, tuple[float, float]]  # measured ranges of isl, osl and concurrency
    alike: Mapping[str, CorrectionModel]  # by "tbt" and "ttft"

    def basis(self, model: str, gpu: GpuSpec, version: str = "") -> str:
        """Return the key of ``errors`` that applies to a model on a GPU type.

        ``version`` includes the engine's name, such as "vllm 0.19.0"; "" means a known one.
        """
        if gpu.family not in NEAREST:
            measured = {gpu_named(name).vendor for name in self.gpus}
            return "vendor_gpu" if gpu.vendor in measured else "vendor"
        if model not in self.models:
            return "model" if gpu.name in self.gpus else "both"
        if gpu.name not in self.gpus:
            return "gpu"
        return "version" if version and version not in self.versions else "seen"

    def newest_before(self, engine: str, version: str) -> str:
        """Return the newest measured version of ``engine`` if ``version`` is later; else ""."""
        measured = [
            name.partition(" ")[2] for name in self.versions if name.startswith(f"{engine} ")
        ]
        newest = max(measured, key=release_order, default="")
        return newest if newest and release_order(version) > release_order(newest) else ""

    def later_version_warning(self, engine: str, version: str) -> str:
        """Return a warning if a version of ``engine`` is later than every measured one, or ""."""
        newest = self.newest_before(engine, version)
        return newest and (
            f"{engine} {version} is later than any measured version (newest: {newest}, "
            f"measurements published on {self.published})"
        )

    def values_out_of_range(self, values: Mapping[str, float]) -> list[str]:
        """Return a phrase for each of ``values`` (isl, osl, concurrency) outside its ``ranges``."""
        return [
            f"{RANGE_NAMES[name]} {values[name]:,g}, measured {low:,g} to {high:,g}"
            for name, (low, high) in self.ranges.items()
            if not low <= values[name] <= high
        ]


@cache
def estimate_fit() -> EstimateFit:
    """Return the content of ``estimate.yaml``, parsed once."""
    document = read("estimate")
    return EstimateFit(
        calibration=Calibration().with_values(document["values"]),
        source=document["source"],
        models=frozenset(document["models"]),
        gpus=frozenset(document["gpus"]),
        versions=frozenset(document["versions"]),
        published=document["published"],
        errors={
            basis: ErrorTable({key: Cell(**cell) for key, cell in cells.items()})
            for basis, cells in document["errors"].items()
        },
        ranges={name: (low, high) for name, (low, high) in document["ranges"].items()},
        # By quantity (tbt, ttft).
        alike={
            name: CorrectionModel(
                ErrorCovariance(**likeness["parts"]),
                ErrorQuantiles(tuple(likeness["half"]), tuple(likeness["nine"])),
            )
            for name, likeness in document["likeness"].items()
        },
    )


@cache
def efficiencies(engine: str = "vllm") -> Efficiencies:
    """Return the efficiency factors by kind of operator, GPU family and precision.

    They come with the spread of their prediction error, their source, and checks of the resulting
    profiles. Factors that only whole deployments can show come from the fit of estimates, some of
    them by ``engine``.
    """
    content = read("efficiency")
    entries = tuple(Efficiency(**entry) for entry in content["entries"])
    checks = tuple(Check(**check) for check in content["checks"])
    fit = estimate_fit().calibration
    return Efficiencies(
        entries, content["across"], checks, fit.unpacked, fit.foreign, fit.scaled_by(engine)
    )
