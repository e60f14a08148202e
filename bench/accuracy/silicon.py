"""TTFT and TPOT of served deployments, of models and GPU types that the fit had not seen.

    python -m bench.accuracy silicon

``silicon_tpot_error`` and ``silicon_ttft_error`` are medians of absolute relative errors over the
predictions of two cross-validations put together: every row once with its model left out of the
fit (releases of one shape are one model), and once with its GPU type. Beside them are both at once,
the engine version (a sixth of the versions at a time), who measured (``source``: InferenceMAX, or
aiconfigurator's own sweeps), and what kernels give before any fit. ``mlenergy_tpot_error`` is the
same for ML.ENERGY's rows, each with its model left out. Many rows of DeepSeek-R1 were measured with
speculative decoding, which they do not say and which makes TPOT 1.5 to 2 times shorter: the figure
without the rows that may be is apart.
"""

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np

from bench.accuracy import coverage, few_rows, left_out, versions
from simulation.arrays import FloatArray
from simulation.performance.estimate.calibration import Calibration
from simulation.performance.estimate.closed_loop import steady_state
from tools.catalogue.fit_estimate import PredictedSeconds, fit, predictions
from tools.catalogue.served_models import ENERGY, SILICON, ServedRows, served_rows

BANDS = (0, 8, 32, 128, 512, np.inf)  # of concurrency


def figures(data: Path) -> dict[str, Any]:
    """Return the figures of the module's docstring, and print tables by part of the rows."""
    if not (data / SILICON).exists():
        raise FileNotFoundError(data / SILICON)
    rows = served_rows(data, energy=(data / ENERGY).exists())
    kept = np.flatnonzero(rows.silicon)
    alone = rows.take(kept)
    every = {"before": _steady(rows, Calibration()), **predictions(rows, fit)}
    errors: dict[str, Any] = left_out.figures(rows, every)
    errors |= {"silicon_rows": alone.size, "silicon_refused": len(rows.refused)}
    del every["vendor"]  # of a few rows only, and part of the figures above
    scored = {n: PredictedSeconds(p.tbt_s[kept], p.ttft_s[kept]) for n, p in every.items()}
    for name, predicted in scored.items():
        errors[f"silicon_tpot_error_{name}"] = _median(_errors(predicted.tbt_s, alone.tbt_s))
        errors[f"silicon_ttft_error_{name}"] = _median(_errors(predicted.ttft_s, alone.ttft_s))
    for figure, quantity in (("tpot", "tbt_s"), ("ttft", "ttft_s")):
        measured = getattr(alone, quantity)
        both = [_errors(getattr(scored[n], quantity), measured) for n in ("model", "gpu")]
        errors[f"silicon_{figure}_error"] = _median(np.concatenate(both))
    plain = np.flatnonzero(~alone.unsure)
    both = [_errors(scored[n].tbt_s, alone.tbt_s)[plain] for n in ("model", "gpu")]
    errors["silicon_tpot_error_without_speculation"] = _median(np.concatenate(both))
    errors |= _mlenergy(rows, every["model"])
    errors |= coverage.figures(rows, every)
    errors |= versions.figures(rows, every["model"])
    errors |= few_rows.figures(rows, every["model"])
    _tables(alone, scored)
    return errors


def _mlenergy(rows: ServedRows, predicted: PredictedSeconds) -> dict[str, float]:
    """Return the errors of ML.ENERGY's rows, each by a fit that has not seen its model."""
    other = ~rows.silicon & ~rows.peak
    if not other.any():
        return {}
    off = predicted.tbt_s[other] / rows.tbt_s[other] - 1.0
    return {
        "mlenergy_rows": int(other.sum()),
        "mlenergy_tpot_error": _median(np.abs(off)),
        "mlenergy_tpot_bias": _median(off),
        "mlenergy_tpot_error_batch_16": _median(np.abs(off)[rows.users[other] <= 16.5]),
    }


def _steady(rows: ServedRows, calibration: Calibration) -> PredictedSeconds:
    steady = steady_state(rows.loop, calibration)
    return PredictedSeconds(steady.tbt_s, steady.ttft_s)


def _errors(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    return np.abs(predicted / measured - 1.0)


def _median(errors: FloatArray) -> float:
    return float(np.median(errors))


def _tables(rows: ServedRows, scored: dict[str, PredictedSeconds]) -> None:
    """Print median errors by part of the rows."""
    bands = np.array([f"{a:g} to {b:g}" for a, b in itertools.pairwise(BANDS)])
    parts = {
        "model": rows.shape,
        "GPU": rows.gpu,
        "engine": rows.engine,
        "source": rows.source,
        "mode": np.where(rows.loop.disaggregated, "disagg", "agg"),
        "precision": rows.precision,
        "concurrency": bands[np.digitize(rows.users, BANDS[1:-1], right=True)],
        "speculation": np.where(rows.unsure, "not known", "none"),
    }
    head = "".join(f"{name:>16}" for name in scored)
    print(f"{'median error of TPOT, TTFT':<34}{'rows':>6}{head}", file=sys.stderr)
    for what, labels in parts.items():
        for label in dict.fromkeys(labels.tolist()):
            kept = labels == label
            cells = ""
            for predicted in scored.values():
                tbt = _median(_errors(predicted.tbt_s[kept], rows.tbt_s[kept]))
                ttft = _median(_errors(predicted.ttft_s[kept], rows.ttft_s[kept]))
                cells += f"{tbt:>8.1%}{ttft:>8.1%}"
            print(f"{what + ' ' + label:<34}{kept.sum():>6}{cells}", file=sys.stderr)
