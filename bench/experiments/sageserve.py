"""SageServe's figures (methods.md E10) beside ours, on the conversations of Azure's week of 2024.

    python -m bench.experiments sageserve [--json] [--scale S] [--plots FOLDER]

Its traces are not public. What stands in: arrivals per 10 s of Azure's LLM inference trace 2024
(conversation), its mean lengths by the hourly token counts, their spread from the requests of 2023;
Llama-2 70B on 8 GPUs with the measured Splitwise profile that the source's simulator uses; three
regions with fixed shares of the arrivals; tiers drawn at the source's ratio of 3 to 1. Everything
else as section 7.1 has it: 20 instances per region at the start, at least 2, 10 minutes
to start, what is released lent out as spot and back within a minute.

- ``strategies``: instance-hours of a peak day (figure 11), hours wasted on starting, attainment.
- ``mix``: LT-UA against unified reactive at IW:NIW of 9:1 and 1:1; ``a100``: on A100;
  ``grouped_query``: with the KV cache that Llama-2 70B has on a server, an eighth.
- ``bursts``: the same day with random stretches of 5 minutes at 8 times the load (figure 16a).
- ``schedulers``: violations by tier under FCFS, EDF, PF and DPA (figure 15b), with LT-UA, on the
  day with those stretches: without them next to nothing is late.
- ``week``: six days (figure 16b); ``fleet``: four models at once, where one takes over in
  10 minutes what another lent out; ``fleet in bursts``: with those stretches.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.experiments import svg
from bench.experiments.sageserve_day import ARRIVALS, Day
from bench.experiments.sageserve_fleet import fleet, week
from planner.domain.planning.planning import plan_window
from planner.domain.progress import silent
from planner.domain.replay import replay as played
from planner.domain.replay.policy_context import SharedInputs
from planner.domain.study import PolicyRun, Study
from planner.policies.choice import policy_of

# On the scenario's own forecast; LT-UA with both readings of section 6.4.
OWN_PLAN = ("lt-i", "lt-u", "lt-ua", "lt-ua by memory")
BY_MEMORY = {"lt-ua by memory": ("lt-ua", {"reading": "memory"})}
STRATEGIES = ("siloed", "reactive", *OWN_PLAN, "lt-i-perfect", "chiron")
# Llama-2 on a peak day, instance-hours (figure 11) and violations by tier (section 7.2.6).
THEIRS = {"reactive": 362.25, "lt-i": 274.5, "lt-u": 291.0, "lt-ua": 277.5, "chiron": 1146.0}
THEIR_VIOLATIONS = {
    "fcfs": (0.45, 0.25), "edf": (0.31, 0.34), "pf": (0.24, 0.60), "dpa": (0.28, 0.38),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--scale", type=float, default=0.5, help="of the arrivals and the fleet")
    parser.add_argument("--plots", type=Path, help="folder for plots, as SVG")
    parser.add_argument("--only", default="", help="comma-separated parts")
    options = parser.parse_args()
    if not ARRIVALS.exists():
        sys.exit(f"{ARRIVALS.name} is not in ../shared/data/traces.")
    with tempfile.TemporaryDirectory() as folder:
        figures = run(Path(folder), options.scale, options.only.split(",") if options.only else [])
    if options.plots:
        plot(figures, options.plots)
    figures.pop("by_hour", None)
    print(json.dumps(figures, indent=None if options.json else 2))


def run(folder: Path, scale: float, only: list[str]) -> dict[str, Any]:
    began = time.perf_counter()
    figures: dict[str, Any] = {"scale": scale}
    day = Day(folder, scale)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "strategies": lambda: strategies(day, figures),
        "mix": lambda: {
            name: against_reactive(day.study(interactive=share))
            for name, share in (("9:1", 0.9), ("1:1", 0.5))
        },
        "a100": lambda: against_reactive(day.study(gpu="A100-80GB")),
        "grouped_query": lambda: against_reactive(day.study(grouped_query=True)),
        "bursts": lambda: strategies(Day(folder, scale, bursts=8.0), {}, OWN_PLAN),
        "schedulers": lambda: schedulers(Day(folder, scale, bursts=8.0)),
        "week": lambda: compare_policies(
            week(folder, scale), ("reactive", "lt-i", "lt-u", "lt-ua")
        ),
        "fleet": lambda: compare_policies(fleet(folder, scale), ("reactive", *OWN_PLAN[:3])),
        "fleet in bursts": lambda: compare_policies(fleet(folder, scale, 8.0), OWN_PLAN[:3]),
    }
    for name, part in parts.items():
        if not only or name in only:
            figures[name] = part()
            _say(f"{name}: {time.perf_counter() - began:.0f} s")
    figures["seconds"] = time.perf_counter() - began
    return figures


def strategies(
    day: Day, figures: dict[str, Any], names: tuple[str, ...] = STRATEGIES
) -> dict[str, Any]:
    study = day.study()
    theta = float(study.sizes.theta_tps.max())
    out: dict[str, Any] = {"requests": len(study.trace), "theta_tps": theta}
    planned = plan_window(study.plan_input, silent)
    by_hour = figures.setdefault("by_hour", {})
    for name in dict.fromkeys(("reactive", *names)):
        policy, settings = BY_MEMORY.get(name, (name, {}))
        if name == "chiron":  # its numbers of instances are for all of the arrivals
            settings = {"scale": day.scale}
        ran = _ran(study, policy, planned, **settings)
        out[name] = _figures(ran)
        up = (ran.series.ready + ran.series.starting + ran.series.draining).sum(axis=0)
        by_hour[name] = up.reshape(96, -1).mean(axis=1).tolist()  # quarters of an hour
        _say(f"  {name}: {json.dumps(out[name])}")
    return out


def against_reactive(study: Study) -> dict[str, Any]:
    ours = {name: _figures(_ran(study, name)) for name in ("reactive", "lt-ua")}
    saved = 1 - ours["lt-ua"]["instance_hours"] / ours["reactive"]["instance_hours"]
    return {**ours, "saved": saved}


def compare_policies(study: Study, names: tuple[str, ...]) -> dict[str, Any]:
    planned = plan_window(study.plan_input, silent)
    return {name: _figures(_ran(study, name, planned)) for name in names} | {
        "requests": len(study.trace)
    }


def schedulers(day: Day) -> dict[str, Any]:
    """Return the figures of the day under LT-UA with four orders of waiting requests."""
    out = {}
    for scheduler in THEIR_VIOLATIONS:
        study = day.study(scheduler=scheduler)
        ran = _ran(study, "lt-ua")
        out[scheduler] = _figures(ran)
    return out


def _ran(study: Study, name: str, planned: Any = None, **settings: Any) -> PolicyRun:
    return played.run_policy(
        study, policy_of(name, **settings), seed=1, progress=silent, shared=SharedInputs(planned)
    )


def _figures(ran: PolicyRun) -> dict[str, Any]:
    summary = ran.summary
    gpus = ran.fleet.pools[0].gpus_per_instance
    return {
        "gpu_hours": round(summary.gpu_hours, 1),
        "starts": dict(summary.starts),
        "instance_hours": round(summary.instance_hours, 1),
        "wasted_hours": round(summary.wasted_gpu_hours / gpus, 1),
        "donated_hours": round(summary.donated_gpu_hours / gpus, 1),
        "violations": {
            name: None if share is None else round(1 - share, 4)
            for name, share in summary.slo_attainment.items()
        },
        "ttft_p95_s": {
            name: None if group.ttft_ms.p95 is None else round(group.ttft_ms.p95 / 1000, 2)
            for name, group in summary.tiers.items()
        },
        "arrived": summary.arrived,
        "unserved": summary.rejected + summary.unfinished,
    }


def plot(figures: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    by_hour = figures.get("by_hour") or {}
    if by_hour:
        count = len(next(iter(by_hour.values())))
        x = [24 * i / count for i in range(count)]
        shown = {name: by_hour[name] for name in by_hour if name != "lt-i-perfect"}
        title = "Instances of Llama-2 70B in three regions on the peak day"
        (folder / "sageserve-instances.svg").write_text(
            svg.lines(title, "hour (UTC)", "instances", x, shown)
        )
    if "strategies" in figures:
        ours = figures["strategies"]
        names = [name for name in THEIRS if name in ours]
        base = ours["reactive"]["instance_hours"]
        (folder / "sageserve-hours.svg").write_text(
            svg.bars(
                "Instance-hours, unified reactive = 1",
                "relative",
                names,
                {
                    "SageServe": [THEIRS[name] / THEIRS["reactive"] for name in names],
                    "ours": [ours[name]["instance_hours"] / base for name in names],
                },
            )
        )
    if "schedulers" in figures:
        names = list(THEIR_VIOLATIONS)
        (folder / "sageserve-schedulers.svg").write_text(
            svg.bars(
                "Share of requests late, by scheduler",
                "fraction",
                names,
                {
                    "SageServe IW-F": [THEIR_VIOLATIONS[n][0] for n in names],
                    "SageServe IW-N": [THEIR_VIOLATIONS[n][1] for n in names],
                    "ours IW-F": [figures["schedulers"][n]["violations"]["IW-F"] for n in names],
                    "ours IW-N": [figures["schedulers"][n]["violations"]["IW-N"] for n in names],
                },
            )
        )


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
