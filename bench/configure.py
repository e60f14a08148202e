"""How fast deployments are searched, and whether the best one's rate is what ``size`` finds.

    python -m bench.configure [--json] [--model llama-3.3-70b] [--isl 1024 --osl 256]

One core: the product's own search of every GPU type, arrangement, precision and engine of one
model, together and with prefill and decode apart, simulations of the best included.

- ``seconds_one_model``: seconds of one core (processor time) of the whole search, compiled code
  warm; ``wall_seconds`` what passed meanwhile, which depends on what else the machine did.
- ``candidates_per_second``: candidates whose rate was computed, over those seconds; those that
  cannot be (memory, precision, divisibility) are not counted.
- ``agrees_with_size``: the best candidate's rate over the rate of ``bin/manage size`` on a scenario
  with its profile and limits, less 1, as a magnitude. Apart: of the side that lets through less.

``--json`` prints these and the best candidates.
"""

import argparse
import json
import sys
import time
from typing import Any

from planner.domain.deployment_search.query import DeploymentQuery
from planner.domain.deployment_search.results import Row, profiles_of
from planner.domain.deployment_search.search import DeploymentSearchResult, search_deployments
from planner.domain.kinds import size
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.inputs.scenario.schema import Scenario
from simulation.search.search import MISSES_QUEUES
from simulation.search.table import MISSES_E2E, MISSES_TBT, MISSES_TTFT, TOO_MANY

TTFT_MS, TBT_MS = 1000.0, 50.0
# Reasons that a candidate is ruled out by once its rate is known.
RATED = (MISSES_TTFT, MISSES_TBT, MISSES_E2E, TOO_MANY, MISSES_QUEUES)


def scenario_of(row: Row, asked: DeploymentQuery) -> Scenario:
    """Return a scenario of one region with the deployment, one tier and little traffic."""
    return Scenario.model_validate(
        {
            "version": 1,
            "name": "bench configure",
            "models": [asked.model],
            "profiles": profiles_of(row, asked.model),
            "regions": [
                {
                    "name": "here", "carbon_g_per_kwh": 300, "capacity": {row.gpu: 4096},
                    "usd_per_gpu_hour": {row.gpu: 1.0},
                }
            ],
            "tiers": [{"name": "limits", "ttft_ms": asked.ttft_ms, "tbt_ms": asked.tbt_ms}],
            "traffic": {"sources": [{"trace": "none", "model": asked.model}]},
        }
    )  # fmt: skip


def sized_rps(row: Row, asked: DeploymentQuery) -> float:
    """Return the requests/s that ``size`` finds: of one instance, or of the limiting role."""
    options = size.Options(isl=asked.isl, osl=asked.osl)
    sized = size.run(Inputs(scenario_of(row, asked)), options, silent).result
    if row.prefill is None or row.decode is None:
        return float(sized.pools[0].sized.max_rps)
    many = {"prefill": row.prefill.instances, "decode": row.decode.instances}
    isl = float(asked.isl)
    return min(
        float(pool.sized.pool_tps[many[pool.sized.replica.role] - 1]) / isl for pool in sized.pools
    )


def measure_query(asked: DeploymentQuery) -> dict[str, Any]:
    warm = asked.model_copy(update={"model": "llama-3.2-1b", "gpus": ("H100-SXM",), "top": 2})
    search_deployments(warm)
    begun = time.process_time()
    configured: DeploymentSearchResult = search_deployments(asked)
    seconds = time.process_time() - begun
    best = configured.candidates[0]
    sized = sized_rps(best, asked)
    never = sum(n for reason, n in configured.ruled_out.items() if reason not in RATED)
    return {
        "seconds_one_model": seconds,
        "wall_seconds": configured.seconds,
        "candidates_per_second": (configured.evaluated - never) / seconds,
        "agrees_with_size": abs(best.max_rps / sized - 1.0),
        "evaluated": configured.evaluated,
        "ruled_out": dict(configured.ruled_out),
        "best_rps": best.max_rps,
        "size_rps": sized,
        "best": profiles_of(best, asked.model),
        "model": configured.model,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--model", default="llama-3.3-70b")
    parser.add_argument("--isl", type=int, default=1024)
    parser.add_argument("--osl", type=int, default=256)
    args = parser.parse_args()
    asked = DeploymentQuery(
        model=args.model, isl=args.isl, osl=args.osl, ttft_ms=TTFT_MS, tbt_ms=TBT_MS
    )
    result = measure_query(asked)
    if args.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name}: {value}", file=sys.stdout)


if __name__ == "__main__":
    main()
