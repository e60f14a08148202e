"""Exact placement against Algorithm 4 against the topology-blind baseline on random trees.

    python -m bench.placement [--json] [--nodes N] [--trees N] [--fill SHARE ...]

Ten services of all kinds (prefill and decode on one or two GPU types, with and without fallbacks,
instances that do both) on trees of two GPU types ask for a share of the GPUs. ``--json`` prints
the means and worst over all of them: ``seconds_METHOD`` (worst), ``honoured_METHOD`` (of placed
units with prefill and decode), ``high_kept_METHOD`` (GPUs of high-priority subgroups still free),
``bandwidth_lost_METHOD``, ``placed_METHOD`` (of GPUs asked for, whole units in one subgroup),
``points_METHOD`` (penalty per GPU asked for), ``gap_exact`` (worst, of the penalty),
``order_holds`` (share of trees where exact <= Algorithm 4 <= blind in points), and ``runs``.
"""

import argparse
import json
import sys
from time import perf_counter
from typing import Any

import numpy as np

from bench.topologies import random_topology
from planner.optimizer.placement import (
    Part,
    Placement,
    PlacementProblem,
    Role,
    Service,
    measure_placement,
    measure_units,
    place_blind,
    place_exact,
    run_algorithm4,
)

METHODS = ("blind", "algorithm4", "exact")
SERVICES = 10
RATIOS = ((1, 1), (1, 2), (2, 1), (3, 2), (1, 5), (9, 1))  # seed 003, section 4: 1P/5D to 9P/1D
LIMIT_S = 10.0


def random_services(seed: int, gpus: float, types: int) -> tuple[Service, ...]:
    """Return services that together need about ``gpus`` GPUs."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(SERVICES, 2.0)) * gpus
    services = []
    for i in range(SERVICES):
        first, second = (int(t) for t in rng.permutation(types)[:2])
        p, d = (int(n) for n in rng.choice((1, 2, 4, 8), 2))
        kind = rng.choice(("both", "one type", "two types", "fallback"), p=(0.3, 0.3, 0.2, 0.2))
        affinity = str(rng.choice(("s1", "s2", "none"), p=(0.3, 0.5, 0.2)))
        ratio = RATIOS[int(rng.integers(len(RATIOS)))]
        priority = int(rng.integers(3))
        if kind == "both":
            part = Part("both", p, (first, second))
            count = max(1, int(share[i] / p))
            alone = (Role("both", (part,)),)
            services.append(Service(f"s{i}", 0, alone, (count,), (), "none", priority))
            continue
        decode = {"one type": (first,), "two types": (second,), "fallback": (second, first)}[kind]
        count = max(1, int(share[i] / (ratio[0] * p + ratio[1] * d)))
        roles = (
            Role("prefill", (Part("prefill", p, (first,)),)),
            Role("decode", (Part("decode", d, decode),)),
        )
        counts = (ratio[0] * count, ratio[1] * count)
        services.append(Service(f"s{i}", 0, roles, counts, ratio, affinity, priority))
    return tuple(services)


def place(problem: PlacementProblem, method: str, seed: int) -> tuple[Placement, float | None]:
    """Return the placement and, for the exact method, its proven gap."""
    if method == "blind":
        return place_blind(problem, seed), None
    if method == "algorithm4":
        return run_algorithm4(problem), None
    exact = place_exact(problem, time_limit_s=LIMIT_S)
    return exact.placement, exact.gap


def one_run(seed: int, nodes: int, fill: float, method: str) -> dict[str, Any]:
    topology = random_topology(seed, nodes=nodes)
    services = random_services(seed, fill * float(topology.gpus.sum()), len(topology.gpu_types))
    problem = PlacementProblem(topology, services)
    asked = sum(n * s.gpus(shape) for s in services for shape, n in s.shapes)
    began = perf_counter()
    placement, gap = place(problem, method, seed)
    seconds = perf_counter() - began
    measures, units = measure_placement(problem, placement), measure_units(problem, placement)
    unsplit = int(units.gpus[~units.split].sum())
    return {
        "seed": seed,
        "nodes": len(topology),
        "fill": fill,
        "method": method,
        "seconds": seconds,
        "points": measures.points / asked,
        "placed": unsplit / asked,
        "honoured": measures.affinity_honoured,
        "high_kept": measures.high_free_gpus / measures.high_gpus if measures.high_gpus else None,
        "bandwidth_lost": measures.bandwidth_lost,
        "split_units": measures.split_units,
        "missed_units": measures.affinity_missed,
        "unplaced_units": measures.unplaced_units,
        "dear_gpus": measures.dear_gpus,
        "fragmented_gpus": measures.fragmented_gpus,
        "gap": gap,
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for method in METHODS:
        of_method = [run for run in runs if run["method"] == method]
        figures[f"seconds_{method}"] = max(run["seconds"] for run in of_method)
        for key in ("honoured", "high_kept", "bandwidth_lost", "placed", "points"):
            known = [run[key] for run in of_method if run[key] is not None]
            figures[f"{key}_{method}"] = float(np.mean(known)) if known else None
    figures["gap_exact"] = max(run["gap"] for run in runs if run["gap"] is not None)
    points = np.array([[r["points"] for r in runs if r["method"] == m] for m in METHODS])
    figures["order_holds"] = float((np.diff(points, axis=0) <= 1e-9).all(axis=0).mean())
    return {**figures, "runs": runs}


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.placement", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--trees", type=int, default=3)
    parser.add_argument("--fill", type=float, nargs="+", default=[0.5, 0.8, 0.95])
    options = parser.parse_args()
    row = "{:>4} {:>6} {:>5} {:<11} {:>8} {:>8} {:>7} {:>9} {:>9} {:>8} {:>8} {:>9}"
    heading = "tree nodes fill method seconds points placed honoured high-kept KV-lost split gap"
    print(row.format(*heading.split()), file=sys.stderr)
    runs = []
    for seed in range(options.trees):
        for fill in options.fill:
            for method in METHODS:
                run = one_run(seed, options.nodes, fill, method)
                runs.append(run)
                shares = [
                    "-" if run[key] is None else f"{run[key]:.1%}"
                    for key in ("placed", "honoured", "high_kept", "bandwidth_lost")
                ]
                gap = "-" if run["gap"] is None else f"{run['gap']:.4%}"
                figures = f"{run['seconds']:.2f}", f"{run['points']:.2f}", *shares
                cells = (seed, run["nodes"], fill, method, *figures, run["split_units"], gap)
                print(row.format(*cells), file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps(summary(runs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
