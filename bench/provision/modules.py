"""Module level: LLaMA-13B and 70B on four A100 of 40 GB, 3 to 50 requests/s (CoCoServe, section 6).

Instance level here is an engine with continuous batching and paged KV cache, not the Hugging Face
loop of the source. Lengths stand in for Alpaca's (assumed): prompts of 32 to 96 tokens, outputs of
mean 128 and at most 256. The limit: 15 s to the last token (assumed; the source names none).
"""

import sys
from dataclasses import asdict
from typing import Any

import numpy as np

from bench.modules.study import Deployment, Outcome, Setting, simulate_arrivals, study
from planner.inputs.catalogue import hardware
from planner.inputs.catalogue.estimate_calibration import efficiencies
from simulation.arrays import FloatArray
from simulation.fleet import Tier
from simulation.performance.adjusted_profile import adjust_profile
from simulation.performance.memory import kv_bytes_per_token, weight_bytes
from simulation.performance.roofline import roofline_profile
from simulation.performance.specs import Arrangement, EngineSettings

GPU = "A100-40GB-PCIe"
RATES = (3.0, 10.0, 20.0, 30.0, 40.0, 50.0)
MIB = 2.0**20
SEED_COPIES = (64_015.44 - 58_786.68) * MIB  # what copies take in the source (section 6.3)
LINK_S = 20e-6  # of a message between GPUs over PCIe (assumed)
DEPLOYMENTS = {
    "llama-13b": (
        Deployment("2 instances", 2),
        Deployment("2 instances, no paging", 2, when_full="fail"),
        Deployment("4 instances", 4),
        Deployment("1 to 4 instances, reactive", 1, most=4),
        Deployment("2 elastic, S of the source, its memory", 2, True, "source", SEED_COPIES),
        Deployment("2 elastic, batch split, its memory", 2, True, "split", SEED_COPIES),
        Deployment("2 elastic, copies and caches", 2, True, "split", moves_kv=True),
        Deployment("2 elastic, copies and caches, no paging", 2, True, "split", moves_kv=True,
                   when_full="fail"),
        Deployment("2 elastic, caches alone", 2, True, "split", moves_kv=True, copies=False),
    ),
    "llama-2-70b": (
        Deployment("1 instance", 1),
        Deployment("1 instance, no paging", 1, when_full="fail"),
        Deployment("1 elastic", 1, True, "split", moves_kv=True),
    ),
}  # fmt: skip
WAVE_S = 600.0  # from few requests to many and back
# Averages of section 6.3 against 2 static instances: latency and throughput at low and high load.
SOURCE = {
    "2 elastic against 2 static": {"latency": (-0.1423, -0.2748), "throughput": (0.1692, 0.3878)},
    "4 static against 2 elastic": {"latency": (-0.1128, -0.1636), "throughput": (0.0959, 0.1394)},
    "memory of 2 elastic over 4 static": 0.5354,
    "OOM at 50 requests/s": {"static": 0.34, "elastic": 0.02},
}


def setting(model: str) -> Setting:
    gpu, shape = hardware.gpu(GPU), hardware.shape(model)
    weights = weight_bytes(shape)
    gpus_each = 1 if model == "llama-13b" else 4
    per_token = float(kv_bytes_per_token(shape))
    room = 0.9 * gpu.memory_bytes * gpus_each - weights
    rng = np.random.default_rng(2)
    profile = roofline_profile(
        shape, gpu, Arrangement(tp=1), efficiencies(),
        EngineSettings(256, 2048, max(1, int(room / per_token))),
    )  # fmt: skip
    attention = 2 * shape.hidden * (shape.heads + shape.kv_heads) * shape.head_dim
    one_layer = 2.0 * (attention + 3 * shape.hidden * shape.intermediate)  # 16 bits
    return Setting(
        profile=adjust_profile(profile, model=model),
        gpu=gpu,
        gpus=4,
        gpus_per_instance=gpus_each,
        layers=shape.layers,
        layer_bytes=one_layer,
        weight_bytes=weights,
        kv_bytes_per_token=per_token,
        hidden_bytes=2.0 * shape.hidden,
        link_bytes_s=float(gpu.link_bytes_s or 25e9),
        link_s=LINK_S,
        isl=rng.integers(32, 97, 4000).astype(np.int32),
        osl=np.clip(rng.exponential(128, 4000), 1, 256).astype(np.int32),
        tier=Tier("alpaca", e2e_s=15.0),
    )


def everything() -> dict[str, object]:
    """Print the tables; return the outcomes and the comparisons with the source."""
    result: dict[str, object] = {}
    for model, deployments in DEPLOYMENTS.items():
        model_setting = setting(model)
        outcomes = study(model_setting, deployments, RATES)
        _print_table(model, outcomes)
        result[model] = [asdict(outcome) for outcome in outcomes]
        if model == "llama-13b":
            result["against_source"] = against_source(outcomes)
        wave = tuple(
            simulate_arrivals(model_setting, deployment, wave_arrivals(), WAVE_RATE)
            for deployment in deployments
        )
        _print_table(f"{model}, {RATES[0]:.0f} to {RATES[-1]:.0f} requests/s and back", wave)
        result[f"{model} in a wave"] = [asdict(outcome) for outcome in wave]
    return result


WAVE_RATE = (RATES[0] + RATES[-1]) / 2


def wave_arrivals(seed: int = 0) -> FloatArray:
    """Return Poisson arrivals whose rate rises from the lowest to the highest and falls again."""
    rng = np.random.default_rng(seed)
    count = int(2 * RATES[-1] * WAVE_S)
    arrivals = np.sort(rng.uniform(0.0, WAVE_S, count))
    share = (RATES[0] + (RATES[-1] - RATES[0]) * np.sin(np.pi * arrivals / WAVE_S) ** 2) / (
        2 * RATES[-1]
    )
    return arrivals[rng.random(count) < share]


def against_source(outcomes: tuple[Outcome, ...]) -> dict[str, Any]:
    """Return changes by elastic deployment; pairs are means over low and over high load."""

    def of(name: str, rate: float) -> Outcome:
        return next(o for o in outcomes if o.deployment.startswith(name) and o.rate == rate)

    def change(first: str, other: str, rates: tuple[float, ...], what: str) -> float:
        ratios = [getattr(of(first, r), what) / getattr(of(other, r), what) - 1 for r in rates]
        return float(np.mean(ratios))

    low, high = tuple(r for r in RATES if r <= 30), tuple(r for r in RATES if r > 30)
    rows: dict[str, Any] = {"source": SOURCE}
    for elastic in (
        "2 elastic, S of the source", "2 elastic, batch split, its memory",
        "2 elastic, copies and caches",
    ):  # fmt: skip
        rows[elastic] = {
            "latency": [change(elastic, "2 instances", x, "latency_s") for x in (low, high)],
            "throughput": [change(elastic, "2 instances", x, "tokens_s") for x in (low, high)],
            "4 static latency": [
                change("4 instances", elastic, x, "latency_s") for x in (low, high)
            ],
            "4 static throughput": [
                change("4 instances", elastic, x, "tokens_s") for x in (low, high)
            ],
            "memory_over_4_static": [
                1 + change(elastic, "4 instances", x, "memory_bytes") for x in (low, high)
            ],
            "oom": [of("2 instances", 50.0).oom_share, of(elastic, 50.0).oom_share],
        }
    rows["OOM without paging at 50 requests/s"] = [
        of(name, 50.0).oom_share
        for name in ("2 instances, no paging", "2 elastic, copies and caches, no paging")
    ]
    return rows


def _print_table(title: str, outcomes: tuple[Outcome, ...]) -> None:
    print(f"{title} on 4 x {GPU}", file=sys.stderr)
    row = "{:<42}{:>7}{:>10}{:>9}{:>9}{:>7}{:>9}{:>7}{:>6}{:>7}{:>5}{:>9}"
    print(
        row.format("deployment", "rate/s", "tokens/s", "mean", "p95", "in SLO", "memory", "OOM",
                   "GPUs", "parts", "ops", "acting"),
        file=sys.stderr,
    )  # fmt: skip
    for o in outcomes:
        print(
            row.format(
                o.deployment, f"{o.rate:.0f}", f"{o.tokens_s:,.0f}", f"{o.latency_s:.2f} s",
                f"{o.p95_s:.2f} s", f"{o.attainment:.0%}", f"{o.memory_bytes / 1e9:.0f} GB",
                f"{o.oom_share:.0%}", f"{o.gpus:.1f}", f"{o.gpu_parts:.1f}", o.operations,
                f"{o.acting_s:.1f} s",
            ),
            file=sys.stderr,
            flush=True,
        )  # fmt: skip
