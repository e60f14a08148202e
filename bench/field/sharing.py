"""Models that share GPUs, against exact packing and the published market of models.

- ``shared_gpus_over_exact``: GPUs of first fit over those of the exact program, over small cases
  with one test of a set: a replay of its requests.
- ``market_saving``: share of GPUs saved on a generated market, next to ``market_published`` 0.82
  (Aegaeon, SOSP 2025, doi 10.1145/3731569.3764815: 1,192 to 213 GPUs).
- ``market_gpus``: GPUs of the market, shared and with replicas of each model.
- ``market_unseen_attainment``: lowest attainment of a model in replays that the packing did not
  see.
- ``market_even_saving``: the same if all models have 0.037 requests/s, the harder case that
  Aegaeon calculates with.

The market has Aegaeon's published figures: models of 1.8B to 72B on H20, 0.037 requests/s each on
average, and 94.1% of the models with 1.35% of the requests. Lengths are ShareGPT's means (Kwon et
al., SOSP 2023). Limits of 10 s and 100 ms and the sizes of models are assumed. Aegaeon began with
1,192 GPUs for tens of models, so several replicas each. Ours begins with the fewest that meet the
SLO, so its saving has another base.
"""

from typing import Any

import numpy as np

from planner.domain.kinds.share import Options, run
from planner.domain.outcome import Inputs
from planner.domain.progress import silent
from planner.inputs import catalogue
from planner.inputs.scenario.document import edit, parse
from planner.inputs.scenario.schema import Scenario
from planner.optimizer.sharing import cache_fits, pack, pack_exact
from simulation.performance.linear import LinearProfile
from simulation.performance.specs import Provenance
from simulation.sharing.replay import SharedHost, SharingModel, replay_gpu

CASES, MODELS = 8, 7
SAVED = 0.82
MARKET, RATE, COLD, COLD_SHARE = 30, 0.037, 0.941, 0.0135
# Built-in models of 1.8B to 72B with their GPUs per replica, as common sizes of a market.
SIZES = (
    ("qwen3-1.7b", 1), ("qwen2.5-3b", 1), ("qwen3-4b", 1), ("qwen2.5-7b", 1), ("qwen3-8b", 1),
    ("llama-3.1-8b", 1), ("mistral-7b-v0.3", 1), ("olmo-3-7b", 1), ("qwen2.5-32b", 4),
    ("qwen2.5-72b", 4),
)  # fmt: skip
HOST = SharedHost(
    host_bytes=1e12, host_bytes_s=25e9, disk_bytes_s=5e9, switch_s=0.1, by_memory=False
)


def figures() -> dict[str, Any]:
    """Return the figures of this capability."""
    ours, exact = np.array([_small(seed) for seed in range(CASES)]).sum(axis=0)
    return {"shared_gpus_over_exact": float(ours / exact), **_market()}


def _small(seed: int) -> tuple[int, int]:
    """Return the GPUs of a small case by first fit and by the exact program."""
    rng = np.random.default_rng(seed)
    models = [_model(rng) for _ in range(MODELS)]
    busy = np.array([replay_gpu([model], HOST).models[0].busy_s for model in models])

    def fits(group: tuple[int, ...]) -> bool:
        return replay_gpu([models[i] for i in group], HOST, to_the_end=False).met

    test = cache_fits(fits)
    return len(pack(busy, test)), len(pack_exact(MODELS, fits))


def _model(rng: np.random.Generator) -> SharingModel:
    """Return a model of 3 to 30 GB with five minutes of Poisson requests."""
    rate = float(10 ** rng.uniform(-1.5, 0.5))
    requests = max(2, int(300 * rate))
    isl, osl = rng.integers(20, 800, requests), rng.integers(10, 300, requests)
    ones, weights = np.ones(requests), float(rng.uniform(3e9, 30e9))
    step_s = weights / 2.5e12
    profile = LinearProfile(
        "m", "gpu", 1, step_s, 1e-4, step_s, 4e-5, 256, 2048, int((70e9 - weights) / 1e5),
        Provenance("assumed", "bench"),
    )  # fmt: skip
    return SharingModel(
        "m", profile, weights, 1e5, np.cumsum(rng.exponential(1 / rate, requests)), isl, isl, osl,
        2.0 * ones, 0.05 * ones, np.inf * ones, np.zeros(requests, np.int64), (0.95,),
    )  # fmt: skip


def _market() -> dict[str, Any]:
    """Return the figures of the generated markets."""
    skewed, even = (
        run(Inputs(market(even=even)), Options(hours=0.5, replays=2), silent).result
        for even in (False, True)
    )
    rows = (*skewed.models, *even.models)
    return {
        "market_saving": skewed.saving,
        "market_even_saving": even.saving,
        "market_published": SAVED,
        "market_gpus": [skewed.shared.gpus, skewed.dedicated.gpus],
        "market_even_gpus": [even.shared.gpus, even.dedicated.gpus],
        "market_models": [len(skewed.models), len(even.models)],
        "market_models_met": sum(row.shared.met for row in rows),
        "market_unseen_attainment": min(row.unseen_attainment for row in rows),
    }


def market(*, even: bool) -> Scenario:
    """Return the scenario of a market with Aegaeon's published statistics."""
    rng = np.random.default_rng(0)
    hot = max(1, round((1 - COLD) * MARKET))
    total = RATE * MARKET
    # Within the hot and the cold models, rates fall by Zipf's law.
    rates = np.concatenate(
        [
            share * total * (weights / weights.sum())
            for share, weights in (
                (1 - COLD_SHARE, 1 / np.arange(1, hot + 1)),
                (COLD_SHARE, 1 / np.arange(1, MARKET - hot + 1)),
            )
        ]
    )
    if even:
        rates = np.full(MARKET, RATE)
    kinds = [SIZES[i] for i in rng.permutation(np.arange(MARKET) % len(SIZES))]
    names = [f"{model}-{i}" for i, (model, _) in enumerate(kinds)]
    return parse(
        edit(
            BASE,
            {
                "models": [
                    _renamed_copy(name, model)
            for name, (model, _) in zip(names, kinds, strict=True)
                ],
                "profiles": [
                    {"model": name, "gpu": "H20", "kind": "roofline", "tp": tp}
                    for name, (_, tp) in zip(names, kinds, strict=True)
                ],
                "traffic.sources": [
                    {
                        "model": name,
                        "launch": {
                            "rps": float(rate), "day": "flat", "variation": 0,
                            "begins": "2026-03-02T00:00:00Z",
                        },
                        "input_tokens": {"mean": 161},
                        "output_tokens": {"mean": 338},
                    }
                    for name, rate in zip(names, rates, strict=True)
                ],
            },
        )
    )  # fmt: skip


def _renamed_copy(name: str, model: str) -> dict[str, Any]:
    """Return a fine-tuned copy of a built-in model."""
    shape = catalogue.model(model).shape
    assert shape is not None
    fields = ("layers", "hidden", "vocab", "heads", "kv_heads", "head_dim", "intermediate",
              "max_context", "gated", "tied_embeddings")  # fmt: skip
    return {"name": name, "shape": {field: getattr(shape, field) for field in fields}}


BASE = """\
version: 1
name: Market of models
models: []
profiles: []
regions:
  - {name: east, capacity: {H20: 2000}, usd_per_gpu_hour: {H20: 2}, carbon_g_per_kwh: 400, pue: 1.2}
tiers:
  - {name: chat, ttft_ms: 10000, tbt_ms: 100, percentile: 90}
traffic: {sources: []}
fleet: {sharing: {host_memory_gb: 240}}
"""
