"""Ratios of prefill to decode by lengths and limits: services A and B of HeteroScale, and a table.

    python -m bench.pd_table [--model qwen3-30b-a3b] [--gpu H20] [--tp 8] [--max-batch 1024]
        [--instances 16]

Prints Markdown for bench/results/pd-ratios.md. The source's models are not public: a public
mixture of experts on the same GPUs stands in, by roofline. Lengths are lognormal with a coefficient
of variation of 0.3, arrivals Poisson, limits hold for 95% of requests.
"""

import argparse
import sys

import numpy as np

from planner.inputs.catalogue.estimate_calibration import efficiencies
from planner.inputs.catalogue.hardware import gpus, shape
from planner.inputs.catalogue.serving import serving_limits
from simulation.errors import SimulationError
from simulation.fleet import KvLink, Tier
from simulation.performance.memory import kv_bytes_per_token
from simulation.performance.profile import Profile
from simulation.performance.roofline import roofline_profile
from simulation.performance.specs import Arrangement
from simulation.sizing.pd_ratio import PdService, all_splits, best_ratio, best_split, ratios
from simulation.sizing.pd_simulation import simulate_best_ratios
from simulation.sizing.workload import Workload
from simulation.synthesis import IndependentLengths, LengthDistribution

ISL, OSL = (128, 512, 2048, 8192, 32_768), (64, 256, 1024, 4096)
TTFT_S, TBT_S = (0.5, 1.0, 5.0), (0.02, 0.04, 0.1)
SERVICES = {"A": (3000, 350, 1.0, 0.04), "B": (7800, 700, 1.0, 0.02)}  # section 4.1
CV, SAMPLE, CONTEXT = 0.3, 4000, 4096
MAX_BATCH_TOKENS = 8192


def profile_of(model: str, gpu: str, tp: int, max_batch: int) -> Profile:
    """Return the roofline profile that a scenario would have, with host times and start."""
    of, kind, where = shape(model), gpus()[gpu], Arrangement(tp=tp)
    limits = serving_limits(of, kind, where, max_batch=max_batch, max_batch_tokens=MAX_BATCH_TOKENS)
    return roofline_profile(of, kind, where, efficiencies(), limits)


def service(
    model: str, gpu: str, profile: Profile, isl: float, osl: float, ttft_s: float, tbt_s: float
) -> PdService:
    lengths = IndependentLengths(LengthDistribution(isl, CV), LengthDistribution(osl, CV)).sample(
        SAMPLE, np.random.default_rng(0)
    )
    network = gpus()[gpu].network_bytes_s
    assert network is not None
    link = KvLink(kv_bytes_per_token(shape(model), "bf16", CONTEXT), profile.tp * network)
    tier = Tier("slo", ttft_s=ttft_s, tbt_s=tbt_s)
    return PdService(profile, profile, Workload(*lengths), tier, link)


def table_of_service(name: str, pd_service: PdService, instances: int) -> list[str]:
    """Return the table of a service: all ratios by closed forms, the best ones by simulation."""
    candidates = ratios(pd_service, all_splits(instances))
    seen = {(r.prefill, r.decode): r for r in simulate_best_ratios(pd_service, candidates)}
    best = best_ratio(list(seen.values()), pd_service)
    lines = [
        f"**Service {name}**: {best.ratio.prefill}P/{best.ratio.decode}D, "
        f"{best.ratio.max_tps:,.0f} tokens/s; lost with one prefill instance less "
        f"{best.fewer_prefill or 0:.0%}, with one more {best.more_prefill or 0:.0%}.",
        "",
        "| P/D | tokens/s, closed forms | simulated | bound by |",
        "| --- | --- | --- | --- |",
    ]
    for row in candidates:
        simulated = seen.get((row.prefill, row.decode))
        bound = simulated or row
        lines.append(
            f"| {row.prefill}/{row.decode} | {row.max_tps:,.0f} | "
            f"{f'{simulated.max_tps:,.0f}' if simulated else ''} | {bound.bound_by} |"
        )
    return [*lines, ""]


def table(model: str, gpu: str, profile: Profile, instances: int) -> list[str]:
    """Return the best ratios by closed forms: a row per TTFT and ISL, a column per TBT and OSL."""
    heads = [f"{1000 * tbt:.0f} ms, {osl:,}" for tbt in TBT_S for osl in OSL]
    lines = [
        "| TTFT, ISL | " + " | ".join(heads) + " |",
        "| --- |" + " --- |" * len(heads),
    ]
    for ttft in TTFT_S:
        for isl in ISL:
            cells = []
            for tbt in TBT_S:
                for osl in OSL:
                    cells.append(
                        _cell(service(model, gpu, profile, isl, osl, ttft, tbt), instances)
                    )
            lines.append(f"| {ttft:g} s, {isl:,} | " + " | ".join(cells) + " |")
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def _cell(pd_service: PdService, instances: int) -> str:
    try:
        best = best_split(pd_service, instances)
    except SimulationError:
        return "–"
    return f"{best.prefill}/{best.decode}" if best.max_tps > 0 else "–"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench.pd_table",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="qwen3-30b-a3b")
    parser.add_argument("--gpu", default="H20")
    parser.add_argument("--tp", type=int, default=8)
    parser.add_argument("--max-batch", type=int, default=1024, help="sequences of an instance")
    parser.add_argument("--instances", type=int, default=16)
    options = parser.parse_args()
    profile = profile_of(options.model, options.gpu, options.tp, options.max_batch)
    lines: list[str] = []
    for name, (isl, osl, ttft, tbt) in SERVICES.items():
        pd_service = service(options.model, options.gpu, profile, isl, osl, ttft, tbt)
        lines += table_of_service(name, pd_service, options.instances)
    lines += table(options.model, options.gpu, profile, options.instances)
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
