"""Ratios of prefill to decode by closed forms beside those that simulation of all finds best."""

import sys
from typing import Any

import numpy as np

from simulation.errors import SimulationError
from simulation.fleet import KvLink, Tier
from simulation.performance.profile import Profile, iteration_s
from simulation.sizing.pd_ratio import PdService, all_splits, best_ratio, ratios
from simulation.sizing.pd_simulation import simulate_ratio
from simulation.sizing.workload import Workload
from simulation.synthesis import IndependentLengths, LengthDistribution

Row = dict[str, Any]
REQUESTS = 8_000  # of each simulation
KV_BYTES, LINK_BYTES_S = 131_072.0, 50e9  # of llama-3.1-8b; a 400 Gbit/s port


def pd_cases(known: list[Profile], cases: int, seed: int) -> list[Row]:
    """Return ``cases`` random services that some ratio serves, with all their ratios simulated."""
    rows: list[Row] = []
    index = 0
    while len(rows) < cases:
        rng = np.random.default_rng([seed, 77, index])
        index += 1
        service, instances = draw_service(known, rng)
        pairs = ratios(service, all_splits(instances))
        try:
            chosen = best_ratio(pairs, service).ratio
        except SimulationError:
            continue
        judged = [
            simulate_ratio(service, pair.prefill, pair.decode, seed=index, requests=REQUESTS)
            for pair in pairs
        ]
        best = max(judged, key=lambda pair: pair.max_tps)
        at_chosen = judged[chosen.prefill - 1]
        rows.append(
            {
                "case": f"{service.prefill.kind} {service.prefill.model} on {service.prefill.tp} x "
                f"{service.prefill.gpu}, isl {service.workload.facts.mean_isl:.0f}, "
                f"osl {service.workload.facts.mean_osl:.0f}",
                "instances": instances,
                "closed": [chosen.prefill, chosen.decode],
                "simulated": [best.prefill, best.decode],
                "steps": abs(chosen.prefill - best.prefill),
                "lost": 1.0 - at_chosen.max_tps / best.max_tps,
                "closed_rps": chosen.max_rps,
                "simulated_rps": at_chosen.max_rps,
            }
        )
        row = rows[-1]
        print(
            f"P/D {len(rows):2} {row['case']}, {instances} instances: {chosen.prefill}P/"
            f"{chosen.decode}D by closed forms, {best.prefill}P/{best.decode}D by simulation, "
            f"{row['lost']:.1%} lost",
            file=sys.stderr,
            flush=True,
        )
    return rows


def draw_service(known: list[Profile], rng: np.random.Generator) -> tuple[PdService, int]:
    """Return a random service, with limits a few times what the profile takes for one request."""
    profile = known[int(rng.integers(len(known)))]
    isl = float(np.exp(rng.uniform(np.log(256), np.log(6000))))
    osl = float(np.exp(rng.uniform(np.log(32), np.log(600))))
    spread = float(rng.choice([0.2, 0.6]))
    lengths = IndependentLengths(
        LengthDistribution(isl, spread, maximum=16_384), LengthDistribution(osl, spread)
    ).sample(20_000, rng)
    alone = float(iteration_s(profile, 0.0, 0.0, isl, isl * isl / 2))
    single = float(iteration_s(profile, 1.0, isl, 0.0, 0.0))
    tier = Tier(
        "slo",
        ttft_s=alone * float(rng.uniform(3.0, 8.0)),
        tbt_s=single * float(rng.uniform(1.3, 3.0)),
        attainment=float(rng.choice([0.9, 0.95, 0.99])),
    )
    link = KvLink(KV_BYTES, LINK_BYTES_S * profile.tp)
    return PdService(profile, profile, Workload(*lengths), tier, link), int(rng.integers(6, 11))
