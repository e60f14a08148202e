"""HeteroScale's figures (methods.md D9) beside ours, on public traces of its two kinds of service.

    python -m bench.experiments heteroscale [--service dialogue|vision|vision-steady] [--json]
        [--quick] [--scale S] [--plots FOLDER] [--only PARTS]

Its traces and its model are not public. What stands in for its dialogue service: arrivals per 10 s
of a day of Azure's LLM inference trace 2024 (conversation), with the lengths and limits of the
source's service A (section 4.1; the trace's own mean 106 output tokens would leave one decode
instance). For its vision-language search service: a day of ServeGen's mm-image by 10 minutes, its
own lengths, the same limits. Qwen3-235B-A22B, or Qwen3-VL of that size, in FP8 on 8 x H20, by
roofline. Prefill and decode apart, in the ratio that carries most of 16 instances.
Every policy starts with the same flat fleet for the peak, has the same GPUs, limits, thresholds and
delays, and takes its target from the same pressure test (Algorithm 1), as section 4.2.2 has it.

- ``policies``: GPU-hours, attainment, how instances follow the load (figures 6 and 7); on the flat
  fleet how far every signal falls with the load (figures 2 and 8).
- ``headroom``: proportional control at a part of the target, until the limits are met.
- ``stability``: other means against flapping, cooling as long as an instance takes to start.
- ``bursts``: the same day with six stretches of five minutes at three times the load.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.experiments.heteroscale_readings import coarse, figures, plot, signals
from bench.experiments.heteroscale_service import STEP_S, Service, load_of, pool_of_signal, service
from bench.experiments.heteroscale_workloads import SOURCES, Workload, dialogue
from planner.domain.progress import silent
from planner.domain.replay.policy_context import policy_context_of
from planner.domain.replay.rated_signals import pressure_test
from planner.policies.choice import policy_of
from simulation.engine.run import simulate
from simulation.metrics import summarise
from simulation.policies.parts.ratio import BEST_RATIO
from simulation.policies.wrappers.observation_log import ObservationLog
from simulation.results import SimulationResult

PROPORTIONAL = (
    "decode-tps", "prefill-tps", "prefill-gpu", "prefill-sm", "decode-gpu", "decode-sm",
)  # fmt: skip
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "flat": ("today", {}),
    "smallest flat": ("flat-min", {}),
    "periodic": ("periodic", {}),
    **{name: (name, {}) for name in (*PROPORTIONAL, "ttft-feedback", "tbt-feedback")},
    "heteroscale": ("heteroscale", {}),
    "observed ratio": ("decode-tps", {"ratio": "observed"}),
}
SLOW = {"cool_out_s": 600, "cool_in_s": 600}  # as long as an instance takes to start
STABILITY: dict[str, tuple[str, dict[str, Any]]] = {
    "decode-tps, no hysteresis, no cooling": (
        "decode-tps", {"theta_out": 0.0, "theta_in": 0.0, "cool_out_s": 0, "cool_in_s": 0},
    ),
    "decode-tps, half dampened": ("decode-tps", {"damping": 0.5}),
    "ttft-feedback, cooling 10 min": ("ttft-feedback", SLOW),
    "heteroscale, cooling 10 min": ("heteroscale", SLOW),
}  # fmt: skip
HEADROOM = (0.8, 0.7)  # 0.9 of a measured target is the default
BURSTS = ("flat", "decode-tps", "ttft-feedback", "heteroscale")
# GPU use (section 4.3, figure 7): down 41.3%; utilisation and SM activity before and after.
THEIRS = {
    "saved": 0.413,
    "prefill-gpu": (0.468, 0.762),
    "prefill-sm": (0.366, 0.625),
    "decode-gpu": (0.860, 0.822),
    "decode-sm": (0.530, 0.616),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--service", choices=SOURCES, default="dialogue")
    parser.add_argument("--scale", type=float, help="of the arrivals")
    parser.add_argument("--quick", action="store_true", help="eight hours, policies only")
    parser.add_argument("--plots", type=Path, help="folder for plots, as SVG")
    parser.add_argument("--only", default="", help="comma-separated parts")
    options = parser.parse_args()
    source = SOURCES[options.service]
    for file in source.files:
        if not file.exists():
            sys.exit(f"{file.name} is not in ../shared/data/traces.")
    with tempfile.TemporaryDirectory() as folder:
        only = options.only.split(",") if options.only else []
        workload = source.read(Path(folder), options.scale or source.scale)
        for name in sorted({*only} & {*workload.without}):
            sys.exit(f"The data of the {workload.name} service allows no {name}; leave it out.")
        result = run(Path(folder), workload, only, options.quick)
    if options.plots:
        plot(result, options.plots)
    result.pop("drawn", None)
    print(json.dumps(result, indent=None if options.json else 2))


def run(folder: Path, workload: Workload, only: list[str], quick: bool) -> dict[str, Any]:
    began = time.perf_counter()
    hours = (6.0, 14.0) if quick else workload.hours  # section 4.2.1: morning to mid-afternoon
    served = service(workload, hours)
    results: dict[str, Any] = {"hours": hours, **facts(served), "drawn": {}}
    _say(json.dumps({k: v for k, v in results.items() if k != "drawn"}))
    parts: dict[str, Callable[[], Any]] = {
        "policies": lambda: policies(
            served, [name for name in POLICIES if name not in workload.without], results
        ),
        "headroom": lambda: headroom(served),
        "stability": lambda: stability(served),
        "bursts": lambda: policies(
            service(dialogue(folder, workload.scale, bursts=3.0), hours, like=served),
            list(BURSTS),
            {"drawn": {}},
        ),
    }
    parts = {name: part for name, part in parts.items() if name not in workload.without}
    for name, part in parts.items():
        if name in only or (not only and (name == "policies" or not quick)):
            results[name] = part()
            _say(f"{name}: {time.perf_counter() - began:.0f} s")
    results["seconds"] = round(time.perf_counter() - began)
    return results


def facts(served: Service) -> dict[str, Any]:
    workload, trace = served.workload, served.study.trace
    bins = round(served.study.window.duration_s / STEP_S)
    load = np.bincount((trace.arrival_s // STEP_S).astype(int), minlength=bins)[:bins]
    shown = pressure_test(served.study, BEST_RATIO)
    return {
        "service": workload.name,
        "model": workload.model,
        "clock": workload.clock,
        "scale": workload.scale,
        "requests": len(trace),
        "mean_tokens": [
            round(float(tokens.mean()), 1) for tokens in (trace.input_tokens, trace.output_tokens)
        ],
        "peak_over_mean": round(float(load.max() / load.mean()), 3),
        "peak_over_trough": round(float(load.max() / load.min()), 3),
        # No fleet that follows requests by STEP_S can save more over a flat one for the peak.
        "most_saved": round(float(1 - load.mean() / load.max()), 3),
        "ratio": round(served.ratio, 3),
        "flat": served.flat.tolist(),
        "theta_tps": [round(float(value)) for value in served.theta_tps],
        "targets": {
            name: round(float(shown.signal_targets(name)[pool_of_signal(served, name)]), 3)
            for name in PROPORTIONAL
        },
    }


def policies(served: Service, names: list[str], results: dict[str, Any]) -> dict[str, Any]:
    """Return figures by policy, the static fleet first; add signals and curves to ``results``."""
    out: dict[str, Any] = {}
    drawn = results["drawn"]
    drawn["load"] = (load_of(served.study, STEP_S) / 1000).tolist()
    for name in names:
        policy, settings = POLICIES[name]
        begun = time.perf_counter()
        out[name], drawn[name], result = replay_policy(served, policy, **settings)
        out[name]["seconds"] = round(time.perf_counter() - begun, 1)
        out[name]["saved"] = round(1 - out[name]["gpu_hours"] / out["flat"]["gpu_hours"], 3)
        if name == "flat":
            results["signals"] = signals(served, result)
        _say(f"  {name}: {json.dumps(out[name])}")
    return out


def headroom(served: Service) -> dict[str, Any]:
    """Control on decode TPS at parts of what the pressure test showed; with the latencies as safety
    and cooling as long as a start besides."""
    tested = pressure_test(served.study, BEST_RATIO)  # at the ratio that policies keep
    shown = float(tested.signal_targets("decode-tps")[pool_of_signal(served, "decode-tps")])
    out = {}
    for part in HEADROOM:
        for name, settings in (("decode-tps", {}), ("heteroscale", SLOW)):
            row, _, _ = replay_policy(served, name, target=part * shown, **settings)
            out[f"{name}, {part:g}"] = row
            _say(f"  {name}, {part:g}: {json.dumps(row)}")
    return out


def stability(served: Service) -> dict[str, Any]:
    """Return the figures of other means against flapping (section 3.6)."""
    return {
        label: replay_policy(served, name, **settings)[0]
        for label, (name, settings) in STABILITY.items()
    }


def replay_policy(
    served: Service, name: str, **settings: Any
) -> tuple[dict[str, Any], list[float], SimulationResult]:
    """Return the figures of one policy, its instances per ``STEP_S``, and its whole result."""
    ready = policy_of(name, **settings).build(
        policy_context_of(served.study, seed=1, progress=silent)
    )
    recording = ObservationLog(ready.policy, signals=False)
    result = simulate(
        served.study.trace,
        ready.fleet,
        recording,
        seed=1,
        duration_s=served.study.window.duration_s,
    )
    asked = np.array([seen.ready + seen.starting for seen in recording.seen])
    up = coarse(result.series.ready + result.series.starting)
    row = figures(served, result, summarise(result), np.diff(asked, axis=0), up)
    return row, up.sum(axis=0).tolist(), result


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
