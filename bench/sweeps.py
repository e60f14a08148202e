"""How well one sweep of a deployment predicts it at other lengths: linear and roofline fits.

    python -m bench.sweeps [--data DIR]

Every pair of isl and osl of a co-located deployment that was served at four loads or more is fitted
as a file of that sweep alone would be, and predicts all other rows of its deployment. Beside them
stands the roofline that no row was fitted to.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import polars as pl

from planner.inputs.catalogue import gpu_name, gpus, model_name, models
from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from simulation.performance.fitting.compare import SERVED_TBT, SERVED_TTFT, Waiting, compare_with
from simulation.performance.fitting.fit import Fitter
from simulation.performance.memory import capacity_tokens
from simulation.performance.profile import Profile
from simulation.performance.roofline import roofline_profile
from simulation.performance.rows import BenchmarkRows, benchmark_rows
from simulation.performance.specs import Arrangement, EngineSettings, Provenance
from tools.catalogue.fit_profiles import CHUNK, DATA, MAX_BATCH

LOADS = 4
DEPLOYMENT = ("model_path", "system", "tp_size", "backend", "gemm_quant_mode")
MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen3-32B")
HERE = Provenance("measured", "bench.sweeps")


def rows_of(part: pl.DataFrame) -> BenchmarkRows:
    """Return the benchmark rows of one deployment."""
    first = part.row(0, named=True)
    names = {"model": model_name(first["model_path"]), "gpu": gpu_name(first["system"])}
    columns = {"tp": "tp_size", "isl": "isl", "osl": "osl", "concurrency": "concurrency"}
    numbers = {key: part[column].to_numpy().astype(float) for key, column in columns.items()}
    numbers |= {
        "ttft_s": part["silicon_ttft_ms"].to_numpy() / 1e3,
        "tbt_s": part["silicon_tpot_ms"].to_numpy() / 1e3,
    }
    return benchmark_rows({key: [name] * part.height for key, name in names.items()}, numbers)


def base_of(rows: BenchmarkRows, fp8: bool) -> Profile:
    """Return the roofline profile of a deployment."""
    shape, gpu = models()[str(rows.model[0])].shape, gpus()[str(rows.gpu[0])]
    assert shape is not None
    where = Arrangement(tp=int(rows.tp[0]), weights="fp8" if fp8 else "bf16")
    kept = capacity_tokens(shape, gpu, where, 4096, CHUNK)
    engine = EngineSettings(MAX_BATCH, CHUNK, kept, estimate_fit().calibration.iteration_s)
    return roofline_profile(shape, gpu, where, efficiencies(), engine)


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.sweeps", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    data = parser.parse_args().data
    if not data.is_dir():
        print(f"There is no data folder {data}: give --data DIR.", file=sys.stderr)
        return 2
    table = pl.read_csv(data / "profiles/silicon_measured.csv.gz", infer_schema_length=None)
    table = table.filter(pl.col("model_path").is_in(MODELS), mode="agg", system="h100_sxm")
    calibration = estimate_fit().calibration
    waiting = Waiting(calibration.of("start", "vllm"), calibration.of("order", "vllm"))
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    for key, part in table.group_by(DEPLOYMENT, maintain_order=True):
        base = base_of(rows_of(part), "fp8" in str(key[-1]))
        for (isl, osl), sweep in part.group_by(["isl", "osl"], maintain_order=True):
            others = part.filter((pl.col("isl") != isl) | (pl.col("osl") != osl))
            if sweep["concurrency"].n_unique() < LOADS or not others.height:
                continue
            profiles = {"roofline, not fitted": base}
            for kind in ("linear", "roofline"):
                fitter = Fitter(kind, base.kv_capacity_tokens, HERE, base=base, waiting=waiting)
                profiles[kind] = fitter.fit(rows_of(sweep), cross_validate=False).profile
            for name, profile in profiles.items():
                found_at = compare_with(profile, rows_of(others), waiting)
                for quantity in (SERVED_TBT, SERVED_TTFT):
                    errors[name, quantity] += np.abs(found_at.of(quantity).error).tolist()
    for (name, quantity), sizes in errors.items():
        print(f"{name:<22}{quantity:<20}{len(sizes):>6} rows, median error {np.median(sizes):.1%}, "
              f"mean {np.mean(sizes):.1%}")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
