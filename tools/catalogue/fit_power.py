"""Fit power by load (simulation.performance.power) and write planner/inputs/catalogue/power.yaml.

    python -m tools.catalogue.fit_power [--data DIR] [--check]

It prints the parameters and their errors on models left out. ``--check`` writes nothing and exits
with 1 if the file differs from the fit. The file holds only parameters and errors, since
ML.ENERGY's leaderboard has no licence file.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from ruamel.yaml import YAML

from simulation.performance.power import PowerModel
from simulation.performance.profile import Check, check
from tools.catalogue import DATA
from tools.catalogue.power_fit import (
    NUISANCE,
    OWN,
    SHARED,
    PowerFit,
    decodes_left_out,
    fit,
    from_decodes,
    predict_left_out_groups,
)
from tools.catalogue.power_rows import TASKS, PowerRows, inferencex, mlenergy, splitwise

TARGET = Path(__file__).parents[2] / "planner/inputs/catalogue/power.yaml"
MLENERGY = (
    "ML.ENERGY leaderboard @ 0cd52da (Chung et al., The ML.ENERGY Benchmark, NeurIPS Datasets and "
    "Benchmarks 2025), vLLM in steady state; parameters fitted by tools/catalogue/fit_power.py"
)
SPLITWISE = (
    "Idle power and memory term: splitwise-sim data/perf_model.csv @ 8f99e7d (Patel et al., "
    "Splitwise, ISCA 2024), decodes of Llama-2-70B and BLOOM-176B. Other terms: mean of the H100 "
    "and B200 fits"
)
INFERENCEX = (
    "Idle power and memory term: SemiAnalysis InferenceX, DeepSeek-R1 in fp8 by SGLang, 2026-05. "
    "Other terms: mean of the H100 and B200 fits"
)
# GPU types with decodes alone: rows, their source, and what is left out at a time.
DECODES = {
    "A100-80GB": (
        splitwise,
        SPLITWISE,
        "Splitwise decodes, each GPU arrangement left out of the fit once",
    ),
    "MI355X": (inferencex, INFERENCEX, "InferenceX, each prompt length left out of the fit once"),
}
DEFAULT = "mean of the H100-SXM and B200 parameters as shares of TDP, for GPU types never measured"
HOST = (
    "splitwise-sim configs/hardware_repo/skus and power model @ 8f99e7d: idle server power minus "
    "idle GPU power, per GPU. Assumed constant under load: a lower bound"
)
SERVERS = {"a100-80gb": "A100-80GB", "h100-80gb": "H100-SXM"}


def round_to_digits(value: float, digits: int = 4) -> float:
    """Return ``value`` rounded to ``digits`` significant digits."""
    return float(f"{value:.{digits}g}")


def values(model: PowerModel, names: tuple[str, ...]) -> dict[str, float]:
    """Return these parameters of a model, rounded."""
    return {name: round_to_digits(getattr(model, name)) for name in names}


def as_check(error: Check) -> dict[str, Any]:
    """Return a check as the file has it."""
    return {
        "against": error.against,
        "rows": error.rows,
        **{
            name: round_to_digits(getattr(error, name), 3)
            for name in ("mape", "median", "p95", "bias")
        },
    }


def hosts(data: Path) -> dict[str, float]:
    """Return the watts of a server outside its GPUs, per GPU."""
    frame = pl.read_csv(data / "power/splitwise_power_model.csv")
    return {
        SERVERS[row["gpu"]]: round_to_digits(
            row["server_idle_w"] / row["gpus_per_server"] - row["idle_w"]
        )
        for row in frame.iter_rows(named=True)
    }


def document(data: Path) -> dict[str, Any]:
    """Return the content of the file."""
    rows = mlenergy(data)
    power_fit = fit(rows, np.ones(len(rows.share), bool))
    default = {**values(power_fit.default, OWN), "kind": "modelled", "source": DEFAULT}
    tokens = dict(zip(TASKS, power_fit.input_tokens.tolist(), strict=True))
    watts = hosts(data)
    input_tokens = {name: round_to_digits(tokens[name], 3) for name in NUISANCE}
    share_of_tdp = (watts["A100-80GB"] / 400 + watts["H100-SXM"] / 700) / 2
    return {
        "shared": {**values(power_fit.default, (*SHARED, "cap")), "kind": "modelled"}
        | {"source": MLENERGY, "input_tokens": input_tokens},
        "gpus": [*_measured_gpus(rows, power_fit), *_gpus_with_decodes(data, power_fit)],
        "default": default | {"check": as_check(_unseen_gpu_check(rows, power_fit))},
        "hosts": {
            "gpus": watts,
            "kind": "published",
            "source": HOST,
            "share_of_tdp": round_to_digits(share_of_tdp, 2),
            "share_source": "mean of the two over the TDP of their GPUs, for all other GPU types",
        },
    }  # fmt: skip


def _measured_gpus(rows: PowerRows, power_fit: PowerFit) -> Iterator[dict[str, Any]]:
    """Yield the entries of GPU types with ML.ENERGY's rows, checked on models left out."""
    share, _ = predict_left_out_groups(rows, rows.family)
    for gpu, model in power_fit.models.items():
        members = rows.gpu == gpu
        error = check("power", "ML.ENERGY, models left out", rows.share[members], share[members])
        yield {
            "gpu": gpu, **values(model, OWN), "kind": "modelled", "source": MLENERGY,
            "check": as_check(error),
        }  # fmt: skip


def _gpus_with_decodes(data: Path, power_fit: PowerFit) -> Iterator[dict[str, Any]]:
    """Yield the entries of GPU types of which only decodes were measured."""
    for gpu, (read, source, against) in DECODES.items():
        names, loads, measured = read(data)
        estimates = decodes_left_out(power_fit.default, names, loads, measured)
        model = from_decodes(power_fit.default, loads, measured)
        yield {
            "gpu": gpu, **values(model, OWN), "kind": "modelled", "source": source,
            "check": as_check(check("power", against, measured, estimates)),
        }  # fmt: skip


def _unseen_gpu_check(rows: PowerRows, power_fit: PowerFit) -> Check:
    """Return the error on each measured GPU type of a fit to the other types."""
    measured, predicted = [], []
    for gpu in power_fit.models:
        members = rows.gpu == gpu
        other = fit(rows, ~members)
        of_other = PowerFit({gpu: other.default}, other.values, other.input_tokens)
        measured.append(rows.share[members])
        predicted.append(of_other.predict(rows)[members])
    against = "ML.ENERGY, each GPU type by the other's parameters"
    return check("power", against, np.concatenate(measured), np.concatenate(predicted))


def main() -> int:
    """Write or check the file; return the exit status."""
    parser = argparse.ArgumentParser(prog="tools.catalogue.fit_power", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"There is no data folder {options.data}: give --data DIR.", file=sys.stderr)
        return 2
    written = document(options.data)
    yaml = YAML()
    yaml.width = 100
    yaml.dump(written, sys.stdout)
    if options.check:
        same = YAML(typ="safe").load(TARGET.read_text()) == written
        print(f"{TARGET.name} is {'what' if same else 'NOT what'} the data give.")
        return 0 if same else 1
    with TARGET.open("w") as file:
        file.write("# Written by tools/catalogue/fit_power.py from measured rows; do not edit.\n")
        file.write("# Shares of TDP; the formula is in simulation/performance/power.py.\n")
        yaml.dump(written, file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
