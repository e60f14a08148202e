"""HeteroScale's figures (methods.md D9) beside ours, on the conversations of Azure's week of 2024.

    python -m bench.experiments heteroscale [--json] [--quick] [--scale S] [--plots FOLDER]

Its traces and its model are not public. What stands in: arrivals per 10 s of a day of Azure's LLM
inference trace 2024 (conversation), with the lengths and limits of the source's service A (section
4.1; the trace's own mean 106 output tokens would leave one decode instance); Qwen3-235B-A22B in FP8
on 8 x H20, by roofline. Prefill and decode apart, in the ratio that carries most of 16 instances.
Every policy starts with the same flat fleet for the peak, has the same GPUs, limits, thresholds and
delays, and takes its target from the same pressure test (Algorithm 1), as section 4.2.2 has it.

- ``policies``: GPU-hours, attainment, how instances follow the load (figures 6 and 7); on the flat
  fleet how far every signal falls with the load (figure 2).
- ``headroom``: proportional control at a part of the target, until the limits are met.
- ``stability``: other means against flapping, cooling as long as an instance takes to start.
- ``bursts``: the same day with six stretches of five minutes at three times the load.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.experiments import svg
from bench.experiments.sageserve import ARRIVALS, Day
from planner.policies.choice import policy_of
from planner.scenario.document import parse
from planner.scenario.known import NOTHING
from planner.studies.pd.judgement import judgement
from planner.studies.pd.service import PairColumns
from planner.studies.preparing import study_of
from planner.studies.progress import silent
from planner.studies.replay.making import making_of
from planner.studies.replay.pressure import pressure_test
from planner.studies.values import Study
from simulation.arrays import FloatArray, IntArray
from simulation.engine.run import simulate
from simulation.fleet import Fleet
from simulation.metrics import Summary, summarise
from simulation.policies.wrappers.recording import Recording
from simulation.results import SimulationResult
from simulation.sizing.pool import fewest, rate_of

MODEL, GPU, TP = "qwen3-235b-a22b", "H20", 8
ISL, OSL, TTFT_MS, TBT_MS = 3000, 350, 1000, 40  # service A, section 4.1
UNIT = 16  # instances that the ratio is found for: nodes in section 4.1
QUOTA = 2.0  # GPUs there are, over the flat fleet's
STEP_S = 300.0  # of what is correlated and drawn
PROPORTIONAL = (
    "decode-tps", "prefill-tps", "prefill-gpu", "prefill-sm", "decode-gpu", "decode-sm",
)  # fmt: skip
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "flat": ("today", {}),
    "periodic": ("periodic", {}),
    **{name: (name, {}) for name in (*PROPORTIONAL, "ttft-feedback", "tbt-feedback")},
    "heteroscale": ("heteroscale", {}),
    "observed ratio": ("decode-tps", {"ratio": "observed"}),
}
SHOWN = (
    "periodic", "decode-tps", "prefill-tps", "prefill-gpu", "decode-gpu", "ttft-feedback",
    "tbt-feedback", "heteroscale",
)  # fmt: skip
SLOW = {"cool_out_s": 600, "cool_in_s": 600}  # as long as an instance takes to start
STABILITY: dict[str, tuple[str, dict[str, Any]]] = {
    "decode-tps, no hysteresis, no cooling": (
        "decode-tps", {"theta_out": 0.0, "theta_in": 0.0, "cool_out_s": 0, "cool_in_s": 0},
    ),
    "decode-tps, half dampened": ("decode-tps", {"damping": 0.5}),
    "ttft-feedback, cooling 10 min": ("ttft-feedback", SLOW),
    "heteroscale, cooling 10 min": ("heteroscale", SLOW),
}  # fmt: skip
HEADROOM = (0.9, 0.8, 0.7)
ATTAINMENT = 0.95
BURSTS = ("flat", "decode-tps", "ttft-feedback", "heteroscale")
# GPU use (section 4.3, figure 7): down 41.3%; utilisation and SM activity before and after.
THEIRS = {
    "saved": 0.413,
    "prefill-gpu": (0.468, 0.762),
    "prefill-sm": (0.366, 0.625),
    "decode-gpu": (0.860, 0.822),
    "decode-sm": (0.530, 0.616),
}


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """The day to replay, its P/D ratio and the flat fleet for its peak, [prefill, decode]."""

    study: Study
    ratio: float
    flat: IntArray
    theta_tps: FloatArray  # input tokens/s of an instance of the flat fleet, C(n) / n, as above


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--scale", type=float, default=0.75, help="of the arrivals")
    parser.add_argument("--quick", action="store_true", help="eight hours, policies only")
    parser.add_argument("--plots", type=Path, help="folder for plots, as SVG")
    parser.add_argument("--only", default="", help="comma-separated parts")
    options = parser.parse_args()
    if not ARRIVALS.exists():
        sys.exit(f"{ARRIVALS.name} is not in ../shared/data/traces.")
    with tempfile.TemporaryDirectory() as folder:
        only = options.only.split(",") if options.only else []
        found = run(Path(folder), options.scale, only, options.quick)
    if options.plots:
        plot(found, options.plots)
    found.pop("drawn", None)
    print(json.dumps(found, indent=None if options.json else 2))


def run(folder: Path, scale: float, only: list[str], quick: bool) -> dict[str, Any]:
    began = time.perf_counter()
    hours = (6.0, 14.0) if quick else (0.0, 24.0)  # section 4.2.1: morning to mid-afternoon
    one = service(Day(folder, scale), hours)
    found: dict[str, Any] = {"scale": scale, "hours": hours, **facts(one), "drawn": {}}
    _say(json.dumps({k: v for k, v in found.items() if k != "drawn"}))
    parts: dict[str, Callable[[], Any]] = {
        "policies": lambda: policies(one, list(POLICIES), found),
        "headroom": lambda: headroom(one),
        "stability": lambda: stability(one),
        "bursts": lambda: policies(
            service(Day(folder, scale, bursts=3.0), hours, like=one), list(BURSTS), {"drawn": {}}
        ),
    }
    for name, part in parts.items():
        if name in only or (not only and (name == "policies" or not quick)):
            found[name] = part()
            _say(f"{name}: {time.perf_counter() - began:.0f} s")
    found["seconds"] = round(time.perf_counter() - began)
    return found


def service(day: Day, hours: tuple[float, float], like: Service | None = None) -> Service:
    """The service on the hours of a day, sized for its own peak or as ``like`` is."""
    study = study_of(parse(json.dumps(scenario(day, hours))), {"t": day.stored}, NOTHING, silent)
    if like is None:
        columns, lengths = _columns(study), study.traffic.lengths[0]
        found = judgement(study.hardware, 0, PairColumns(*columns), lengths, UNIT, 1)
        ratio = found.best.ratio.prefill / found.best.ratio.decode
        # Sizes, ratio and flat fleet are the product's own: C(n) of each pool at the day's peak.
        curves = [study.sizes.pool_tps[0, g] for g in columns]
        peak = float(load_of(study, study.window.bin_s).max())
        flat = np.array([fewest(curve, peak) for curve in curves], np.int64)
        theta = np.array([
            rate_of(curve, int(n)) / n for curve, n in zip(curves, flat, strict=True)
        ])  # fmt: skip
    else:
        ratio, flat, theta = like.ratio, like.flat, like.theta_tps
    counts = np.zeros_like(study.peak)
    for g, count in zip(_columns(study), flat, strict=True):
        counts[0, 0, g] = count
    quota = int(np.ceil(QUOTA * flat.sum())) * TP
    hardware = replace(
        study.hardware,
        today=counts,
        capacity_gpus=np.full_like(study.hardware.capacity_gpus, quota),
    )
    return Service(replace(study, hardware=hardware, peak=counts), ratio, flat, theta)


def scenario(day: Day, hours: tuple[float, float]) -> dict[str, Any]:
    """In the words of a scenario; the spread of lengths is that of the requests of 2023."""
    profile = {"model": MODEL, "gpu": GPU, "tp": TP, "kind": "roofline", "precision": "fp8"}
    return {
        "version": 1,
        "name": "HeteroScale's dialogue service",
        "seed": 1,
        "models": [MODEL],
        "profiles": [
            profile | {"role": role, "max_batch": 1024, "max_batch_tokens": 8192}
            for role in ("prefill", "decode")
        ],
        "regions": [
            {
                "name": "one",
                "capacity": {GPU: 200 * TP},
                "usd_per_gpu_hour": {GPU: 1.0},  # of one GPU type: it decides nothing
                "carbon_g_per_kwh": 0,
                "pue": 1,
            }
        ],
        "tiers": [{"name": "chat", "ttft_ms": TTFT_MS, "tbt_ms": TBT_MS}],
        "traffic": {
            "bin_s": 900,
            "sources": [
                {
                    "trace": "t",
                    "series": "conv",
                    "model": MODEL,
                    "regions": {"one": 1.0},
                    "tiers": {"chat": 1.0},
                    "scale": day.scale,
                    "input_tokens": {"mean": ISL, "cv": day.isl["cv"]},
                    "output_tokens": {"mean": OSL, "cv": day.osl["cv"]},
                }
            ],
        },
        "fleet": {"startup_s": 600, "minimum": 1},
        "horizon": {
            "start": f"{day.date}T{int(hours[0]):02d}:00:00Z",
            "duration_s": 3600 * (hours[1] - hours[0]),
            "period_s": 3600,
        },
        "policies": ["flat-peak"],
    }


def facts(one: Service) -> dict[str, Any]:
    load = load_of(one.study, STEP_S)
    return {
        "requests": len(one.study.trace),
        "peak_over_mean": round(float(load.max() / load.mean()), 3),
        "peak_over_trough": round(float(load.max() / load.min()), 3),
        "ratio": round(one.ratio, 3),
        "flat": one.flat.tolist(),
        "theta_tps": [round(float(value)) for value in one.theta_tps],
        "targets": {
            name: round(float(pressure_test(one.study).of(name)[_drives(one, name)]), 3)
            for name in PROPORTIONAL
        },
    }


def signals(one: Service, result: SimulationResult) -> dict[str, Any]:
    """Of every signal, by 5 minutes: its correlation with the load, and its mean at the calmest
    tenth over that at the busiest tenth (the load's own beside it)."""
    load = load_of(one.study, STEP_S)
    return {
        name: _follows(values, load) for name, values in ({"load": load} | readings(result)).items()
    }


def readings(result: SimulationResult) -> dict[str, FloatArray]:
    """Signals by ``STEP_S``, as a policy sees them."""
    series = result.series
    prefill, decode = _roles(result.fleet)
    with np.errstate(invalid="ignore", divide="ignore"):
        busy = _coarse(series.busy) / _coarse(series.ready)
    sm, tokens_in, tokens_out = (
        _coarse(values)
        for values in (series.sm_activity, series.input_tokens, series.output_tokens)
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
    at = (result.trace.arrival_s // STEP_S).astype(int)
    for name, values in (("ttft", result.requests.ttft_s), ("tbt", result.requests.tbt_s)):
        known = ~np.isnan(values)
        bins = len(out["decode-tps"])
        counts = np.bincount(at[known], minlength=bins)[:bins]
        out[name] = np.bincount(at[known], values[known], bins)[:bins] / np.maximum(counts, 1)
    return out


def policies(one: Service, names: list[str], found: dict[str, Any]) -> dict[str, Any]:
    """Figures by policy, the flat fleet first; ``found`` gets its signals and what is drawn."""
    out: dict[str, Any] = {}
    drawn = found["drawn"]
    drawn["load"] = (load_of(one.study, STEP_S) / 1000).tolist()
    for name in names:
        policy, given = POLICIES[name]
        begun = time.perf_counter()
        out[name], drawn[name], result = replayed(one, policy, **given)
        out[name]["seconds"] = round(time.perf_counter() - begun, 1)
        out[name]["saved"] = round(1 - out[name]["gpu_hours"] / out["flat"]["gpu_hours"], 3)
        if name == "flat":
            found["signals"] = signals(one, result)
            if "periodic" in names:
                out |= smaller_flats(one, out["flat"]["gpu_hours"])
        _say(f"  {name}: {json.dumps(out[name])}")
    return out


def smaller_flats(one: Service, gpu_hours: float) -> dict[str, Any]:
    """Flat fleets with ever fewer decode instances and prefill in the ratio: the last that meets
    the tier is the smallest, and what any policy has to beat."""
    out: dict[str, Any] = {}
    for decode in range(int(one.flat[1]) - 1, 0, -1):
        counts = np.zeros_like(one.study.today)
        flat = [int(np.ceil(decode * one.ratio - 1e-9)), decode]
        counts[0, 0, list(_columns(one.study))] = flat
        smaller = replace(one, study=replace(
            one.study, hardware=replace(one.study.hardware, today=counts)
        ))  # fmt: skip
        row, _, _ = replayed(smaller, "today")
        row["saved"] = round(1 - row["gpu_hours"] / gpu_hours, 3)
        out[f"flat {flat[0]}P/{flat[1]}D"] = row
        _say(f"  flat {flat}: {json.dumps(row)}")
        if row["attainment"] < ATTAINMENT:
            break
    return out


def headroom(one: Service) -> dict[str, Any]:
    """Control on decode TPS at parts of what the pressure test showed; with the latencies as safety
    and cooling as long as a start besides."""
    shown = float(pressure_test(one.study).of("decode-tps")[_drives(one, "decode-tps")])
    out = {}
    for part in HEADROOM:
        for name, given in (("decode-tps", {}), ("heteroscale", SLOW)):
            row, _, _ = replayed(one, name, target=part * shown, **given)
            out[f"{name}, {part:g}"] = row
            _say(f"  {name}, {part:g}: {json.dumps(row)}")
    return out


def stability(one: Service) -> dict[str, Any]:
    """Other means against flapping (section 3.6)."""
    return {label: replayed(one, name, **given)[0] for label, (name, given) in STABILITY.items()}


def replayed(
    one: Service, name: str, **given: Any
) -> tuple[dict[str, Any], list[float], SimulationResult]:
    """Figures of one policy, its instances by ``STEP_S``, and all that came out."""
    ready = policy_of(name, **given).ready(making_of(one.study, seed=1, progress=silent))
    recording = Recording(ready.policy, signals=False)
    result = simulate(
        one.study.trace, ready.fleet, recording, seed=1, duration_s=one.study.window.duration_s
    )
    asked = np.array([seen.ready + seen.starting for seen in recording.seen])
    up = _coarse(result.series.ready + result.series.starting)
    row = figures(one, result, summarise(result), np.diff(asked, axis=0), up)
    return row, up.sum(axis=0).tolist(), result


def figures(
    one: Service, result: SimulationResult, summary: Summary, steps: IntArray, up: FloatArray
) -> dict[str, Any]:
    """``steps`` ``[instants, pools]``: instances added and taken out; ``up`` ``[pools, bins]``."""
    prefill, decode = _roles(result.fleet)
    load = load_of(one.study, STEP_S)
    needed = load[None, :] / one.theta_tps[:, None]
    whole = up[[prefill, decode]].sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        kept = result.series.ready[prefill] / result.series.ready[decode] / one.ratio
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
        "correlation": _correlation(whole, load),
        "overshoot": round(float(whole.max() / np.ceil(needed).sum(axis=0).max()), 3),
        "instances": [round(float(whole.min()), 1), round(float(whole.max()), 1)],
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
    """How often a fleet that grew was made smaller next, or the other way round."""
    total = steps.sum(axis=1)
    signs = np.sign(total[total != 0])
    return int((signs[1:] != signs[:-1]).sum())


def load_of(study: Study, step_s: float) -> FloatArray:
    """Input tokens/s that arrive, by ``step_s``."""
    bins = round(study.window.duration_s / step_s)
    at = (study.trace.arrival_s // step_s).astype(int)
    return np.bincount(at, study.trace.input_tokens, bins)[:bins] / step_s


def plot(found: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    drawn = found.get("drawn") or {}
    if drawn:
        start, end = found["hours"]
        x = np.linspace(start, end, len(drawn["load"])).tolist()
        peak = max(drawn["flat"]) / max(drawn["load"])
        load = {"load (scaled)": [peak * value for value in drawn["load"]]}
        for name, shown in {
            "tracking": ("flat", "decode-tps", "prefill-gpu", "decode-gpu", "heteroscale"),
            "feedback": ("flat", "decode-tps", "ttft-feedback", "tbt-feedback"),
        }.items():
            (folder / f"heteroscale-{name}.svg").write_text(
                svg.lines(
                    f"Instances of {MODEL} on {TP} x {GPU}, prefill and decode",
                    "hour (UTC)",
                    "instances",
                    x,
                    load | {one: drawn[one] for one in shown},
                )
            )
    if "policies" in found:
        names = [name for name in SHOWN if name in found["policies"]]
        (folder / "heteroscale-hours.svg").write_text(
            svg.bars(
                "GPU-hours over those of the flat fleet for the peak (theirs, by TPS: 0.587)",
                "relative",
                names,
                {"ours": [round(1 - found["policies"][name]["saved"], 3) for name in names]},
            )
        )
    if "signals" in found:
        names = list(found["signals"])
        (folder / "heteroscale-signals.svg").write_text(
            svg.bars(
                "Calmest tenth of the day over the busiest, on the flat fleet",
                "relative",
                names,
                {"ours": [found["signals"][name]["calm_over_busy"] for name in names]},
            )
        )


def _follows(values: FloatArray, load: FloatArray) -> dict[str, float | None]:
    order = np.argsort(load)
    tenth = max(1, len(load) // 10)
    calm, busy = (float(np.nanmean(values[at])) for at in (order[:tenth], order[-tenth:]))
    return {"correlation": _correlation(values, load), "calm_over_busy": round(calm / busy, 3)}


def _correlation(values: FloatArray, load: FloatArray) -> float | None:
    """None where nothing moves."""
    if float(np.ptp(values)) < 1e-9:
        return None
    return round(float(np.corrcoef(values, load)[0, 1]), 3)


def _coarse(values: FloatArray) -> FloatArray:
    """``[pools, minutes]`` to means by ``STEP_S``."""
    each = round(STEP_S / 60)
    whole = values[:, : values.shape[1] // each * each].reshape(len(values), -1, each)
    return np.asarray(whole.mean(axis=2))


def _columns(study: Study) -> tuple[int, int]:
    roles = [column.role for column in study.hardware.columns]
    return roles.index("prefill"), roles.index("decode")


def _roles(fleet: Fleet) -> tuple[int, int]:
    """The prefill and the decode pool."""
    roles = [pool.role for pool in fleet.pools]
    return roles.index("prefill"), roles.index("decode")


def _drives(one: Service, signal: str) -> int:
    """The pool that a signal is read from."""
    return _roles(one.study.hardware.fleet(one.study.today))[
        0 if signal.startswith("prefill") else 1
    ]


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else round(ms / 1000, 4)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
