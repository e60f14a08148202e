"""What is read off a replay of HeteroScale's service: signals, figures, plots."""

from pathlib import Path
from typing import Any

import numpy as np

from bench.experiments import svg
from bench.experiments.heteroscale_service import (
    GPU,
    STEP_S,
    TBT_MS,
    TP,
    TTFT_MS,
    Service,
    load_of,
    pools_of,
)
from simulation.arrays import FloatArray, IntArray
from simulation.metrics import Summary
from simulation.results import SimulationResult

SHOWN = (
    "periodic", "decode-tps", "prefill-tps", "prefill-gpu", "decode-gpu", "ttft-feedback",
    "tbt-feedback", "heteroscale",
)  # fmt: skip


def signals(served: Service, result: SimulationResult) -> dict[str, Any]:
    """Return how each signal follows the load, by 5 minutes.

    These are its correlation with the load, and its mean in the calmest tenth over that in the
    busiest tenth. The load itself is one of the signals.
    """
    load = load_of(served.study, STEP_S)
    return {
        name: _follows(values, load) for name, values in ({"load": load} | readings(result)).items()
    }


def readings(result: SimulationResult) -> dict[str, FloatArray]:
    """Return signals by ``STEP_S``, as a policy observes them."""
    series = result.series
    prefill, decode = pools_of(result.fleet)
    with np.errstate(invalid="ignore", divide="ignore"):
        busy = coarse(series.busy) / coarse(series.ready)
    sm, tokens_in, tokens_out = (
        coarse(values) for values in (series.sm_activity, series.input_tokens, series.output_tokens)
    )
    per_s = result.series.interval_s
    out = {
        "decode-tps": tokens_out[decode] / per_s,
        "prefill-tps": tokens_in[prefill] / per_s,
        "prefill-gpu": busy[prefill],
        "prefill-sm": sm[prefill],
        "decode-gpu": busy[decode],
        "decode-sm": sm[decode],
    }
    bin_of = (result.trace.arrival_s // STEP_S).astype(int)
    for name, values in (("ttft", result.requests.ttft_s), ("tbt", result.requests.tbt_s)):
        known = ~np.isnan(values)
        bins = len(out["decode-tps"])
        counts = np.bincount(bin_of[known], minlength=bins)[:bins]
        out[name] = np.bincount(bin_of[known], values[known], bins)[:bins] / np.maximum(counts, 1)
    return out


def figures(
    served: Service, result: SimulationResult, summary: Summary, steps: IntArray, up: FloatArray
) -> dict[str, Any]:
    """Return the figures of a run.

    ``steps [instants, pools]`` are instances added and removed, ``up [pools, bins]`` those running.
    """
    prefill, decode = pools_of(result.fleet)
    load = load_of(served.study, STEP_S)
    needed = load[None, :] / served.theta_tps[:, None]
    both = up[[prefill, decode]].sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        kept = result.series.ready[prefill] / result.series.ready[decode] / served.ratio
    busy = result.series.busy.sum(axis=1) / result.series.ready.sum(axis=1)
    sm = (result.series.sm_activity * result.series.ready).sum(axis=1) / result.series.ready.sum(
        axis=1
    )
    kept = kept[np.isfinite(kept)]
    late = {
        limit: round(float(np.mean(~(values <= limit_ms / 1000))), 4)
        for limit, values, limit_ms in (
            ("ttft", result.requests.ttft_s, TTFT_MS),
            ("tbt", np.nan_to_num(result.requests.tbt_s), TBT_MS),
        )
    }
    return {
        "gpu_hours": round(summary.gpu_hours),
        "attainment": summary.slo_attainment["chat"],
        "late": late,
        "ttft_p95_s": _seconds(summary.ttft_ms.p95),
        "tbt_p95_s": _seconds(summary.tbt_ms.p95),
        "unserved": summary.rejected + summary.unfinished,
        "correlation": _correlation(both, load),
        "overshoot": round(float(both.max() / np.ceil(needed).sum(axis=0).max()), 3),
        "instances": [round(float(both.min()), 1), round(float(both.max()), 1)],
        "out": int((steps > 0).any(axis=1).sum()),
        "in": int((steps < 0).any(axis=1).sum()),
        "turns": turns(steps),
        "ratio_within_quarter": round(float(np.mean(np.abs(kept - 1) <= 0.25)), 3),
        "prefill-gpu": round(float(busy[prefill]), 3),
        "prefill-sm": round(float(sm[prefill]), 3),
        "decode-gpu": round(float(busy[decode]), 3),
        "decode-sm": round(float(sm[decode]), 3),
    }


def turns(steps: IntArray) -> int:
    """Return how often a growing fleet shrinks next, or the other way round."""
    total = steps.sum(axis=1)
    signs = np.sign(total[total != 0])
    return int((signs[1:] != signs[:-1]).sum())


def plot(results: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    service = results["service"]
    stem = "heteroscale" if service == "dialogue" else f"heteroscale-{service}"
    drawn = results.get("drawn") or {}
    if drawn:
        start, end = results["hours"]
        x = np.linspace(start, end, len(drawn["load"])).tolist()
        peak = max(drawn["flat"]) / max(drawn["load"])
        load = {"load (scaled)": [peak * value for value in drawn["load"]]}
        for name, shown in {
            "tracking": ("flat", "decode-tps", "prefill-gpu", "decode-gpu", "heteroscale"),
            "feedback": ("flat", "decode-tps", "ttft-feedback", "tbt-feedback"),
        }.items():
            (folder / f"{stem}-{name}.svg").write_text(
                svg.lines(
                    f"Instances of {results['model']} on {TP} x {GPU}, prefill and decode",
                    results["clock"],
                    "instances",
                    x,
                    load | {name: drawn[name] for name in shown},
                )
            )
    if "policies" in results:
        names = [name for name in SHOWN if name in results["policies"]]
        (folder / f"{stem}-hours.svg").write_text(
            svg.bars(
                "GPU-hours over those of the flat fleet for the peak (theirs, by TPS: 0.587)",
                "relative",
                names,
                {"ours": [round(1 - results["policies"][name]["saved"], 3) for name in names]},
            )
        )
    if "signals" in results:
        names = list(results["signals"])
        (folder / f"{stem}-signals.svg").write_text(
            svg.bars(
                "Calmest tenth of the day over the busiest, on the flat fleet",
                "relative",
                names,
                {"ours": [results["signals"][name]["calm_over_busy"] for name in names]},
            )
        )


def _follows(values: FloatArray, load: FloatArray) -> dict[str, float | None]:
    order = np.argsort(load)
    tenth = max(1, len(load) // 10)
    calm, busy = (float(np.nanmean(values[steps])) for steps in (order[:tenth], order[-tenth:]))
    return {"correlation": _correlation(values, load), "calm_over_busy": round(calm / busy, 3)}


def _correlation(values: FloatArray, load: FloatArray) -> float | None:
    """Return the correlation of values with the load; None if the values are constant."""
    if float(np.ptp(values)) < 1e-9:
        return None
    return round(float(np.corrcoef(values, load)[0, 1]), 3)


def coarse(values: FloatArray) -> FloatArray:
    """Return means by ``STEP_S`` of values ``[pools, minutes]``."""
    each = round(STEP_S / 60)
    grouped = values[:, : values.shape[1] // each * each].reshape(len(values), -1, each)
    return np.asarray(grouped.mean(axis=2))


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else round(ms / 1000, 4)
