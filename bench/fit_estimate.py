"""Fit the calibration of estimates and write planner/catalogue/estimate.yaml.

    python -m bench.fit_estimate [--data DIR] [--check]

The loss is robust (soft L1 of logarithms, width 0.1) with a pull towards the values assumed before
any fit, so that what the rows do not determine stays there. Rows that repeat a measurement count
once, and a group of rows (model, GPU, mode, engine, precision) by the square root of its size, so
that the model measured most does not decide alone. Rows that may hide speculative decoding are
taken for whichever of the two, with and without, lies nearer. ML.ENERGY's server spends more on the
host, and some for every sequence (its small models on fast GPUs are bound by it): two numbers of
its own, fitted and not kept.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from bench.served import Served, served
from simulation.performance.calibration import ENGINES, Calibration
from simulation.performance.closed_loop import fixed_s, steady_state

ROOT = Path(__file__).parents[1]
DATA = ROOT / "../shared/data"
TARGET = ROOT / "planner/catalogue/estimate.yaml"

FloatArray = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

WIDTH = 0.1  # of the loss: below it errors count by their square, above by their size
TTFT_WEIGHT = 0.4  # of a TTFT beside a TBT: it repeats less well
ENERGY_WEIGHT = 0.3  # of a row without input lengths
ACCEPTED = 1.9  # tokens per iteration where decoding is speculative, before the fit
ENERGY_HOST, ENERGY_SEQUENCE_S = 1.0, 20e-6  # likewise
# How far, in logarithms, a value may leave what was assumed before it costs as much as one row.
FREEDOM = 0.5
FREEDOMS = {
    "bandwidth": 0.15, "fp8_read": 0.2, "fp4_read": 0.3, "int4_read": 0.3, "cache_bandwidth": 0.3,
    "cache_compute": 0.4, "compute": 0.25, "prefill_experts": 0.7, "attention": 0.4,
    "kernel_s": 0.7, "quantise_s": 0.7, "mixture_s": 0.7, "mixer_s": 0.7, "latent_s": 0.7,
    "iteration_s": 1.0, "shared": 0.1, "mix": 0.3, "start_s": 0.7, "order": 1.0,
    "split_decode": 0.15,
    **{f"host.{engine}": 0.15 for engine in ENGINES},
    **{f"mix.{engine}": 0.3 for engine in ENGINES},
    **{f"order.{engine}": 0.7 for engine in ENGINES},
}  # fmt: skip


def weights(rows: Served) -> FloatArray:
    """Of each row in the loss, mean 1."""
    keys = list(
        zip(rows.shape, rows.gpu, rows.loop.split, rows.engine, rows.loop.precision, strict=True)
    )
    once = 1.0 / rows.copies
    size: Counter[tuple[object, ...]] = Counter()
    for key, weight in zip(keys, once, strict=True):
        size[key] += weight
    weight = once / np.sqrt(np.maximum([size[key] for key in keys], 10.0))
    weight *= np.where(rows.silicon, 1.0, ENERGY_WEIGHT)
    return np.asarray(weight / weight.mean())


def fit(rows: Served, assumed: Calibration | None = None) -> Calibration:
    """The calibration that fits ``rows``."""
    base = (assumed or Calibration()).values()
    names = list(base)
    start = np.log([*base.values(), ACCEPTED, ENERGY_HOST, ENERGY_SEQUENCE_S])
    freedom = np.array([FREEDOMS.get(name, FREEDOM) for name in names] + [0.3, 0.3, 1.0])
    scale = np.sqrt(weights(rows))
    timed = ~np.isnan(rows.ttft_s)
    unsure, energy = np.flatnonzero(rows.unsure), np.flatnonzero(~rows.silicon)
    drafting, hosted = rows.take(unsure).drafting, rows.take(energy).loop

    def residuals(x: FloatArray) -> FloatArray:
        calibration = calibrated(names, x)
        accepted, host, sequence_s = np.exp(x[len(names) :])
        steady = steady_state(rows.loop, calibration)
        tbt = steady.tbt_s.copy()
        tbt[energy] += (host - 1.0) * fixed_s(hosted.decode, hosted, calibration)
        tbt[energy] += sequence_s * hosted.batch
        off = np.log(np.maximum(tbt, 1e-6) / rows.tbt_s)
        other = np.log(steady_state(drafting, calibration).tbt_s / accepted / rows.tbt_s[unsure])
        plain = off[unsure]
        off[unsure] = np.where(np.abs(other) + WIDTH / 2 < np.abs(plain), other, plain)
        late = np.log(steady.ttft_s[timed] / rows.ttft_s[timed])
        return np.concatenate(
            [scale * off, TTFT_WEIGHT * scale[timed] * late, (x - start) / freedom]
        )

    found = least_squares(residuals, start, loss="soft_l1", f_scale=WIDTH, max_nfev=30)
    return calibrated(names, found.x)


def calibrated(names: list[str], x: FloatArray) -> Calibration:
    return Calibration().with_values(
        {name: float(value) for name, value in zip(names, np.exp(x), strict=False)}
    )


Fitter = Callable[[Served], Calibration]


@dataclass(frozen=True, slots=True, eq=False)
class Predicted:
    """Seconds predicted for rows that the fit had not seen."""

    tbt_s: FloatArray
    ttft_s: FloatArray


def held_out(rows: Served, groups: Mapping[str, tuple[Rows, Rows]], fitter: Fitter) -> Predicted:
    """Predictions for the second rows of each group from a fit to the first."""
    tbt, ttft = np.full(rows.size, np.nan), np.full(rows.size, np.nan)
    for seen, unseen in groups.values():
        calibration = fitter(rows.take(seen))
        steady = steady_state(rows.take(unseen).loop, calibration)
        tbt[unseen], ttft[unseen] = steady.tbt_s, steady.ttft_s
    return Predicted(tbt, ttft)


def without_model(rows: Served) -> dict[str, tuple[Rows, Rows]]:
    return _leave_out(rows.shape)


def without_gpu(rows: Served) -> dict[str, tuple[Rows, Rows]]:
    return _leave_out(rows.gpu)


def without_both(rows: Served) -> dict[str, tuple[Rows, Rows]]:
    """Neither the model nor the GPU type of the rows that are scored was fitted."""
    found = {}
    for shape in np.unique(rows.shape):
        for gpu in np.unique(rows.gpu[rows.shape == shape]):
            same_shape, same_gpu = rows.shape == shape, rows.gpu == gpu
            seen = np.flatnonzero(~same_shape & ~same_gpu)
            found[f"{shape} on {gpu}"] = (seen, np.flatnonzero(same_shape & same_gpu))
    return found


def _leave_out(labels: npt.NDArray[np.str_]) -> dict[str, tuple[Rows, Rows]]:
    return {
        str(label): (np.flatnonzero(labels != label), np.flatnonzero(labels == label))
        for label in np.unique(labels)
    }


BASES = {"seen": None, "model": without_model, "gpu": without_gpu, "both": without_both}
Errors = dict[str, dict[str, dict[str, float]]]


def errors(rows: Served, fitter: Fitter) -> Errors:
    """Median absolute errors of the served rows by mode and by what the fit had seen."""
    found: Errors = {"agg": {}, "disagg": {}}
    every = np.arange(rows.size)
    for basis, groups in BASES.items():
        split = groups(rows) if groups else {"all": (every, every)}
        scored = {k: v for k, v in split.items() if rows.silicon[v[1]].any()}
        predicted = held_out(rows, scored, fitter)
        for mode, apart in (("agg", False), ("disagg", True)):
            kept = rows.silicon & (rows.loop.split == apart)
            found[mode][basis] = {
                "tbt": _median(predicted.tbt_s[kept] / rows.tbt_s[kept]),
                "ttft": _median(predicted.ttft_s[kept] / rows.ttft_s[kept]),
            }
    return found


def _median(ratio: FloatArray) -> float:
    return float(np.median(np.abs(ratio - 1.0)))


def document(rows: Served) -> str:
    """The text of ``estimate.yaml``."""
    silicon = rows.silicon
    shown = [
        "# Written by bench/fit_estimate.py: what serving reaches of the published peaks (see",
        "# simulation/performance/calibration.py for the meaning of each value) and the median",
        "# absolute errors by mode and by what the fit that was scored had not seen.",
        "source: >-",
        f"  {silicon.sum()} served deployments of aiconfigurator silicon_sample.csv @ 095f58a",
        f"  (Apache-2.0) and {(~silicon).sum()} of ML.ENERGY leaderboard @ 0cd52da",
        f"models: [{', '.join(sorted(set(rows.known[silicon])))}]",
        f"gpus: [{', '.join(sorted(set(rows.gpu[silicon])))}]",
        "errors:",
    ]
    for mode, by_basis in errors(rows, fit).items():
        shown.append(f"  {mode}:")
        for basis, figures in by_basis.items():
            line = ", ".join(f"{name}: {value:.3f}" for name, value in figures.items())
            shown.append(f"    {basis}: {{{line}}}")
    shown.append("values:")
    shown += [f"  {name}: {value:.4g}" for name, value in fit(rows).values().items()]
    return "\n".join(shown) + "\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fit the calibration of estimates.")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--check", action="store_true", help="compare with the file instead")
    options = parser.parse_args(arguments)
    text = document(served(options.data))
    print(text)
    if options.check:
        return int(text != TARGET.read_text(encoding="utf-8"))
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
