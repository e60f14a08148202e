"""How fast the simulator is, in requests per second of one core, after compilation.

    python -m bench.simulate [--json] [--quick]

- ``poisson80_rps``: the reference scenario of 40 instances at 80 requests/s, continued to 300,000
  requests; the best of five runs.
- ``features_rps``: the same requests in two regions and three tiers, one of them deferrable, with
  prefix caches and LT-UA on (``features`` says what else; ``hit_rate`` what the caches found of
  prompts of which half is a beginning that others have too).
- ``week10m_seconds``, ``week10m_rss_mb``: ten million requests over a week with days and nights,
  three regions, four models, three tiers, unified reactive; with the making of its trace.
- ``by_requests`` and ``by_instances``: microseconds a request, from 10^5 to 10^7 requests, and
  from 20 to 2,000 instances at the same load on each (CPU time, best of three; with the default
  router, ``by_router`` with each).
- ``router_cost_ratio``: a request on 2,000 instances over one on 20, with the default router.

``--quick`` leaves the week and the scaling out. Each figure is measured in a process of its own.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from bench import reference
from simulation.arrays import Int32Array
from simulation.engine.compilation import warm_up
from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import Fleet, Region, Routing, Tier
from simulation.performance.linear import LinearProfile
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.static import Static
from simulation.policies.utilization_gated import UtilizationGated
from simulation.policy import ScalingPolicy
from simulation.trace import PrefixBlocks, Trace

RATE = 80.0
WEEK_S = 7 * 86_400.0
FEATURES = (
    "chunked prefill",
    "two regions",
    "three tiers",
    "NIW queue",
    "prefix caching",
    "prefix-aware router",
    "DPA",
    "LT-UA",
)
TIERS = (Tier("IW-F", ttft_s=1.0), Tier("IW-N", ttft_s=60.0), Tier("NIW", deferrable=True))
SHARES = (0.47, 0.25, 0.28)
SCALED = ("least-remaining", "least-pending", "round-robin", "least-memory")  # routers


def poisson(n: int, rate: float = RATE) -> Trace:
    """Return Poisson arrivals with lengths drawn from ``azure2023_conv`` by a fixed seed."""
    source = reference.rows("mixed_poisson80")
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(source), size=n)
    lengths = [source[name].to_numpy()[drawn] for name in ("input_tokens", "output_tokens")]
    return reference.trace(np.cumsum(rng.exponential(1 / rate, n)), *lengths)


def poisson80() -> dict[str, Any]:
    trace, fleet = poisson(300_000), _flat(40)
    return {"poisson80_rps": len(trace) / _best(trace, fleet, lambda: Static([40]))}


def features() -> dict[str, Any]:
    trace = _with_labels(poisson(300_000), ("m",), ("east", "west"))
    trace = replace(trace, blocks=_beginnings(trace.input_tokens))
    fleet = serving_fleet(("m",), ("east", "west"), initial=20, maximum=60)
    pools = tuple(replace(pool, prefix_cache=True, scheduler="dpa") for pool in fleet.pools)
    fleet = replace(fleet, pools=pools, routing=Routing(instance="prefix-aware"))
    tps = float(trace.input_tokens.sum()) / trace.duration_s / len(pools)

    def policy() -> ScalingPolicy:
        return UtilizationGated(
            FixedSchedule([0.0, 3600.0], [[20, 20]] * 2), forecast_tps=np.full((2, 2), tps)
        )

    totals = simulate(trace, fleet, policy()).totals
    return {
        "features_rps": len(trace) / _best(trace, fleet, policy),
        "hit_rate": float(totals.hit_tokens.sum() / totals.looked_up_tokens.sum()),
        "features": list(FEATURES),
    }


def _beginnings(isl: Int32Array) -> PrefixBlocks:
    """Return prompt blocks of 64 tokens.

    Half of each prompt is one of 2,000 beginnings, few of them popular.
    """
    rng = np.random.default_rng(3)
    counts = -(-isl.astype(np.int64) // 64)
    start = np.r_[0, np.cumsum(counts)]
    position = np.arange(start[-1]) - np.repeat(start[:-1], counts)
    which = np.repeat(rng.zipf(1.2, len(isl)) % 2000, counts)
    alike = position < np.repeat(counts // 2, counts)
    longest = int(counts.max())
    ids = np.where(alike, which * longest + position, 2000 * longest + np.arange(start[-1]))
    return PrefixBlocks(start, ids.astype(np.int32), 64)


def week() -> dict[str, Any]:
    """Return the figures of a week whose hourly rates swing by half, and are lower on weekends."""
    began = time.perf_counter()
    n = 10_000_000
    rng = np.random.default_rng(1)
    hours = np.arange(168)
    shape = (1 + 0.5 * np.sin(2 * np.pi * hours / 24)) * np.where(hours // 24 < 5, 1.0, 0.7)
    times = np.interp(
        np.sort(rng.random(n)), np.r_[0, np.cumsum(shape)] / shape.sum(), np.arange(169)
    )
    trace = replace(poisson(n), arrival_s=times * 3600.0)
    models, regions = ("a", "b", "c", "d"), ("east", "west", "north")
    trace = _with_labels(trace, models, regions)
    result = simulate(
        trace,
        serving_fleet(models, regions, initial=2, maximum=50),
        UnifiedReactive(),
        duration_s=WEEK_S,
    )
    return {
        "week10m_seconds": time.perf_counter() - began,
        "week10m_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "week10m_simulating_seconds": result.wall_seconds,
    }


def scaling() -> dict[str, Any]:
    """Return microseconds per request at equal load per instance, by requests and instances."""
    by_requests = {}
    for n in (10**5, 10**6, 10**7):
        by_requests[n] = 1e6 * _once(poisson(n), _flat(40), Static([40])) / n
    by_router = {router: _by_instances(router) for router in SCALED}
    default = by_router[Routing().instance]
    return {
        "by_requests": by_requests,
        "by_instances": default,
        "by_router": by_router,
        "router_cost_ratio": default[2000] / default[20],
    }


def _by_instances(router: str) -> dict[int, float]:
    micros = {}
    for instances in (20, 200, 2000):
        trace = poisson(300_000, RATE * instances / 40)
        fleet = replace(_flat(instances), routing=Routing(instance=router))
        micros[instances] = 1e6 * min(_cpu(trace, fleet, Static([instances])) for _ in range(3))
        micros[instances] /= len(trace)
    return micros


def _cpu(trace: Trace, fleet: Fleet, policy: ScalingPolicy) -> float:
    began = time.process_time()
    simulate(trace, fleet, policy)
    return time.process_time() - began


def _with_labels(trace: Trace, models: tuple[str, ...], regions: tuple[str, ...]) -> Trace:
    rng = np.random.default_rng(2)
    n = len(trace)
    return replace(
        trace,
        model=rng.integers(len(models), size=n).astype(np.int16),
        region=rng.integers(len(regions), size=n).astype(np.int16),
        tier=rng.choice(3, size=n, p=SHARES).astype(np.int16),
        models=models,
        regions=regions,
        tiers=tuple(tier.name for tier in TIERS),
    )


def _flat(instances: int) -> Fleet:
    return reference.fleet(reference.pool(instances))


def serving_fleet(
    models: tuple[str, ...], regions: tuple[str, ...], initial: int, maximum: int
) -> Fleet:
    """Return pools of Llama-2-70B with grouped queries on eight H100.

    Their profile is the catalogue's linear one.
    """
    profile = LinearProfile(
        "m", reference.GPU, 8, 0.0288, 3.4e-4, 0.021, 8.5e-5, 256, 2048, 500_000, reference.SOURCE
    )
    single = replace(reference.pool(1, profile), startup_s=600.0)
    pools = tuple(
        replace(single, model=model, region=region, initial=initial, minimum=1, maximum=maximum)
        for model in models
        for region in regions
    )
    return Fleet(
        tiers=TIERS,
        regions=tuple(Region(name, 400.0, 1.2) for name in regions),
        pools=pools,
        latency_s=0.03 * (1.0 - np.eye(len(regions))),
    )


def _once(trace: Trace, fleet: Fleet, policy: ScalingPolicy) -> float:
    began = time.perf_counter()
    simulate(trace, fleet, policy)
    return time.perf_counter() - began


def _best(trace: Trace, fleet: Fleet, policy: Callable[[], ScalingPolicy]) -> float:
    return min(_once(trace, fleet, policy()) for _ in range(5))


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "poisson80": poisson80,
    "features": features,
    "week": week,
    "scaling": scaling,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="without the week and the scaling")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        warm_up()
        print(json.dumps(PARTS[args.part]()))
        return
    out: dict[str, Any] = {}
    for part in ("poisson80", "features") if args.quick else PARTS:
        command = [sys.executable, "-m", "bench.simulate", "--part", part]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if run.returncode:
            raise SystemExit(run.returncode)
        out |= json.loads(run.stdout)
        print(f"{part} done", file=sys.stderr)
    if args.json:
        print(json.dumps(out))
        return
    for name, value in out.items():
        rounded = isinstance(value, float) and value >= 100
        print(f"{name:28} {value:,.0f}" if rounded else f"{name:28} {value}")


if __name__ == "__main__":
    try:
        main()
    except SimulationError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
