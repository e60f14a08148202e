"""Table profiles against rows that they did not see; linear, operator and roofline beside.

``table_mape_rows``: a random fifth of the rows is left out, ten times; the worse of prompt and
token time. ``table_mape``: every configuration (prompt, batch, output) inside the grid is left out
with all its repeats, one at a time; the worse of the two again. A configuration is at an edge where
its prompt, batch or output lies beyond those of all others of its arrangement. Rows that were no
whole batch (``BenchmarkRows.ran_as_one_batch``) are neither fitted nor scored; they are counted.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.inputs.catalogue import hardware
from planner.inputs.catalogue.estimate_calibration import efficiencies
from planner.inputs.ingest.benchmarks import read_benchmarks
from simulation.performance.fitting.compare import (
    PREFILL,
    TBT,
    Residuals,
    compare_with,
    concatenate_residuals,
)
from simulation.performance.fitting.fit import Fitter
from simulation.performance.profile import Profile
from simulation.performance.roofline import operator_profile, roofline_profile
from simulation.performance.rows import BenchmarkRows
from simulation.performance.specs import Arrangement, EngineSettings, Provenance
from tools.catalogue.operator_checks import aic_kernels

SPLITS, SHARE, SEED = 10, 0.2, 20260101
CHUNK = 2048.0  # prefill tokens of one iteration, in the linear profiles
NOWHERE = Provenance("measured", "bench.accuracy.tables")
QUANTITIES = {"prompt": PREFILL, "token": TBT}
GPUS = {"a100-80gb": "A100-80GB", "h100-80gb": "H100-SXM"}  # not the power-capped one

Fit = Callable[[BenchmarkRows], Profile]
Mask = npt.NDArray[np.bool_]


def table(rows: BenchmarkRows) -> Profile:
    return Fitter("table", 1, NOWHERE).fit(rows, cross_validate=False).profile


def linear(rows: BenchmarkRows) -> Profile:
    fitter = Fitter("linear", 1, NOWHERE, max_batch=256, max_batch_tokens=int(CHUNK))
    return fitter.fit(rows, cross_validate=False).profile


FITS: dict[str, Fit] = {"table": table, "linear": linear}


def residuals_of_left_out(fit: Fit, rows: BenchmarkRows, test: Mask) -> Residuals:
    return compare_with(fit(rows.take(~test)), rows.take(test))


def mape(residuals: Residuals, quantity: str) -> float:
    return float(np.abs(residuals.of(quantity).error).mean())


def random_rows(fit: Fit, parts: list[BenchmarkRows]) -> Residuals:
    random = np.random.default_rng(SEED)
    tests = [[random.random(part.rows) < SHARE for part in parts] for _ in range(SPLITS)]
    return concatenate_residuals([
        residuals_of_left_out(fit, part, test)
        for each in tests for part, test in zip(parts, each, strict=True)
    ])  # fmt: skip


def configurations(fit: Fit, parts: list[BenchmarkRows]) -> tuple[Residuals, Residuals]:
    """Return the residuals of configurations inside the grid and at its edge.

    The grid has all rows, also those that did not run as one batch.
    """
    inside: list[Residuals] = []
    edge: list[Residuals] = []
    for part in parts:
        sizes = np.column_stack([part.isl, part.batch, part.osl])
        for size in np.unique(sizes, axis=0):
            test = (sizes == size).all(axis=1)
            others = sizes[~test]
            beyond = (size < others.min(axis=0)) | (size > others.max(axis=0))
            whole_rows = part.take(part.ran_as_one_batch)
            residuals = residuals_of_left_out(fit, whole_rows, test[part.ran_as_one_batch])
            (edge if beyond.any() else inside).append(residuals)
    return concatenate_residuals(inside), concatenate_residuals(edge)


def of_file(path: Path, prefix: str) -> dict[str, Any]:
    """Return the figures of a file in splitwise or SageServe format, by ``prefix`` and name."""
    rows = read_benchmarks(path).rows
    grids = [part for _, part in rows.arrangements()]
    parts = [part.take(part.ran_as_one_batch) for part in grids]
    result: dict[str, Any] = {
        f"{prefix}table_rows": sum(part.rows for part in parts),
        f"{prefix}table_rows_not_whole": rows.rows - sum(part.rows for part in parts),
    }
    for kind, fit in FITS.items():
        split = random_rows(fit, parts)
        inside, edge = configurations(fit, grids)
        for name, quantity in QUANTITIES.items():
            result |= {
                f"{prefix}{kind}_{name}_mape_rows": mape(split, quantity),
                f"{prefix}{kind}_{name}_mape": mape(inside, quantity),
                f"{prefix}{kind}_{name}_mape_edge": mape(edge, quantity),
            }
        for figure in ("mape_rows", "mape", "mape_edge"):
            both = [result[f"{prefix}{kind}_{name}_{figure}"] for name in QUANTITIES]
            result[f"{prefix}{kind}_{figure}"] = max(both)
    return result


def rule_based_errors(data: Path) -> dict[str, Any]:
    """Return the errors of operator and roofline profiles on the same splitwise rows.

    These profiles saw none of the rows. The rows are of engines of 2023, the kernels of 2025.
    """
    limits = EngineSettings(256, 32768, 1 << 20)
    by_kind: dict[str, list[Residuals]] = {"operator": [], "roofline": []}
    rows = read_benchmarks(data / "profiles/splitwise_perf_model.csv").rows
    for (model, hardware_name, tp), part in rows.arrangements():
        if hardware_name not in GPUS:
            continue
        gpu, shape = hardware.gpu(GPUS[hardware_name]), hardware.shape(model)
        where, factors = Arrangement(tp=tp), efficiencies()
        measured = aic_kernels(data, gpu.name)
        profiles: dict[str, Profile] = {
            "operator": operator_profile(shape, gpu, where, measured, factors, limits),
            "roofline": roofline_profile(shape, gpu, where, factors, limits),
        }
        for kind, profile in profiles.items():
            by_kind[kind].append(compare_with(profile, part))
    return {
        f"{kind}_{name}_mape": mape(concatenate_residuals(parts), quantity)
        for kind, parts in by_kind.items()
        for name, quantity in QUANTITIES.items()
    }


def figures(data: Path) -> dict[str, Any]:
    return {
        **of_file(data / "profiles/splitwise_perf_model.csv", ""),
        **of_file(data / "profiles/sageserve_llama3_perf.csv", "sageserve_"),
        **rule_based_errors(data),
    }
