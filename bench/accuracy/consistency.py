"""Whether the product contradicts itself.

    python -m bench.accuracy consistency

``monotone_in_gpus``: pairs of estimates of one deployment of which the one on more GPUs of a kind
gives fewer tokens per second, the GPUs in the best of the ways that an operator has: as one
instance, as more that are narrower, or some of them idle. ``monotone_in_gpus_one_group``: the same
where all GPUs have to be one tensor parallel group: on L40S, whose GPUs reduce over PCIe (measured:
8 of them at 1.4 GB/s each), width costs more than it brings, and such an estimate says so.
``monotone_in_gpus_built_in``: pairs of built-in profiles, as one group. ``size_agrees``: of
built-in profiles, how far ``estimate`` at the rate that a size finds (TTFT 1 s, TBT 100 ms, or what
the profile can) and another draw of the same rate through the simulator are apart, TTFT and TBT,
the worst of them;
``one_speed_*`` of all profiles by rule, for each engine: how far an iteration that decodes,
a prompt alone and a lone request's TTFT of what sizes and plans read are from those of estimates;
``closed_loop_*`` of computed profiles, how far the closed loop of estimates at IN_FLIGHT and the
closed forms of sizes at the rate that it gives are: there the one has as many in flight at any
time, the other requests that come by chance, which wait for each other.
"""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from planner.inputs.catalogue.measured_profiles import capacity_rps
from planner.inputs.catalogue.rule_based_profiles import modelled_profiles
from planner.inputs.catalogue.serving import serving_limits
from planner.inputs.estimates.at_rate import (
    at_rate,
    gpu_uses,
    narrower_uses,
)
from planner.inputs.estimates.deployment_rows import deployment
from planner.inputs.scenario.user_facts import NO_USER_FACTS
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.estimate.estimate import RefusedEstimate, estimate, estimate_rows
from simulation.performance.profile import iteration_s
from simulation.performance.roofline import roofline_profile
from simulation.performance.specs import Arrangement
from simulation.sizing.batch_queue import evaluate_pool
from simulation.sizing.capacity import SizingCase, capacity
from simulation.sizing.trial import RequestDraws, Trial, pool_of
from simulation.sizing.workload import Workload

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "gpt-oss-120b")
GPUS = ("A100-80GB", "H100-SXM", "H200", "B200", "MI300X", "L40S")
WIDTHS = (1, 2, 4, 8)
USERS = (1.0, 16.0, 256.0)
ISL, OSL, IN_FLIGHT = 1155, 211, 32.0
STEADY = 1e6  # rounds, of which the first counts for nothing
ALIKE = 1e-9
TRICKLE = 1e-3  # requests/s
SIZED, REPLAYED = 32_000, 32_000  # requests of a replay, as for sizes
MODELLED = 24  # of the profiles by rule, each that-th is sized
AT_ONCE = (1.0, 16.0, 64.0)  # decodes of an iteration


def max_tokens_per_s(deployment: Deployment) -> float:
    """Return the most tokens/s of the deployment's GPUs in any arrangement; 0: none fits."""
    ways = [
        *gpu_uses([deployment]),
        *narrower_uses(deployment, all_gpus=False),
        *narrower_uses(deployment, all_gpus=True),
    ]
    return max((way.tokens_per_s for way in ways), default=0.0)


def figures(_: Path) -> dict[str, Any]:
    return {
        **_estimates(),
        "monotone_in_gpus_built_in": _built_in(),
        **_one_speed(),
        **_agreement(),
        **_sizes(),
    }


def _deployment(model: str, gpu: str, tp: int, users: float, engine: str = "vllm") -> Deployment:
    where = Arrangement(tp=tp, moe_tp=tp)
    shape, kind = catalogue.shape(model), catalogue.gpu(gpu)
    return Deployment(shape, kind, where, ISL, OSL, users, engine, rounds=STEADY)


def _estimates() -> dict[str, int]:
    """Return how often the next larger width that fits gives fewer tokens/s."""
    best, group = 0, 0
    for model, gpu, users in itertools.product(MODELS, GPUS, USERS):
        asked = [_deployment(model, gpu, tp, users) for tp in WIDTHS]
        best += _falls([max_tokens_per_s(case) for case in asked])
        group += _falls([way.tokens_per_s for case in asked for way in gpu_uses([case])])
    return {"monotone_in_gpus": best, "monotone_in_gpus_one_group": group}


def _falls(rates: list[float]) -> int:
    return sum(more < few * (1 - ALIKE) for few, more in itertools.pairwise(rates))


def _built_in() -> int:
    known = catalogue.profiles()
    return sum(
        few[:2] == many[:2]
        and few[2] < many[2]
        and capacity_rps(known[many]) < capacity_rps(known[few])
        for few, many in itertools.permutations(known, 2)
    )


def _one_speed() -> dict[str, Any]:
    """Return the largest differences of rule-based profiles from their estimates, and where."""
    apart: dict[str, dict[str, float]] = {"decode": {}, "prompt": {}, "lone_ttft": {}}
    for combination, engine in itertools.product(modelled_profiles(), ENGINES):
        row = {
            "model": combination.model,
            "gpu": combination.gpu,
            "tp": combination.tp,
            "precision": combination.precision,
        }
        row |= {"isl": ISL, "osl": OSL, "engine": engine, "rounds": STEADY, "kv_cache": "bf16"}
        asked = [deployment(row | {"concurrency": users}) for users in AT_ONCE]
        shape, name = (
            replace(asked[0].shape, encoder=None),
            f"{engine} {combination.model} {combination.gpu}",
        )
        limits = serving_limits(shape, asked[0].gpu, asked[0].decode, engine=engine)
        read = roofline_profile(shape, asked[0].gpu, asked[0].decode, efficiencies(engine), limits)
        estimates = estimate_rows(asked, estimate_fit().calibration, efficiencies())
        prompt = float(iteration_s(read, 0.0, 0.0, ISL, ISL * ISL / 2.0))
        for users, answer in zip(AT_ONCE, estimates, strict=True):
            if isinstance(answer, RefusedEstimate) or answer.batch < users:
                continue
            decode = float(iteration_s(read, users, users * (ISL + OSL / 2.0), 0.0, 0.0))
            apart["decode"][f"{name} {users:g}"] = abs(decode / answer.decode_s - 1.0)
            if users == 1.0:
                apart["prompt"][name] = abs(prompt / answer.prompt_s - 1.0)
                apart["lone_ttft"][name] = abs((read.start_s + prompt) / answer.ttft_s - 1.0)
    worst = {what: max(values, key=lambda name: values[name]) for what, values in apart.items()}
    return {
        "one_speed_compared": sum(map(len, apart.values())),
        **{f"one_speed_{what}": values[worst[what]] for what, values in apart.items()},
        **{f"one_speed_{what}_worst": name for what, name in worst.items()},
    }


def _agreement() -> dict[str, float]:
    apart: dict[str, list[float]] = {"tbt": [], "ttft": []}
    same = (np.full(100, ISL, np.int32), np.full(100, OSL, np.int32))
    for (model, gpu, tp), engine in itertools.product(
        (
            ("llama-3.1-8b", "H100-SXM", 1),
            ("llama-3.1-70b", "H100-SXM", 4),
            ("qwen3-32b", "B200", 1),
        ),
        ("vllm", "trtllm"),
    ):
        case = _deployment(model, gpu, tp, IN_FLIGHT, engine)
        closed_loop = estimate(case, estimate_fit().calibration, efficiencies())
        limits = serving_limits(case.shape, case.gpu, case.decode, engine=engine)
        factors = efficiencies(engine)
        profile = roofline_profile(case.shape, case.gpu, case.decode, factors, limits)
        seen = evaluate_pool(
            profile, Workload(*same, burstiness=1.0).at(closed_loop.tokens_per_s / OSL)
        )
        for name, other in (("tbt", seen.tbt.mean), ("ttft", seen.ttft.mean)):
            ours = getattr(closed_loop, f"{name}_s")
            apart[name].append(max(ours, other) / min(ours, other) - 1.0)
    return {f"closed_loop_{name}": float(max(values)) for name, values in apart.items()}


def _sizes() -> dict[str, Any]:
    """Return the differences of sizes for measured profiles, and for each MODELLED-th other."""
    known = [(model, gpu, tp, "bf16") for model, gpu, tp in catalogue.profiles()]
    known += [
        (combination.model, combination.gpu, combination.tp, combination.precision)
        for combination in modelled_profiles()[::MODELLED]
    ]
    apart: dict[str, dict[str, float]] = {"ttft": {}, "tbt": {}}
    for model, gpu, tp, precision in known:
        row = {"model": model, "gpu": gpu, "tp": tp, "precision": precision, "isl": ISL, "osl": OSL}
        case = deployment(row | {"concurrency": 1, "kv_cache": "bf16"})
        profile = at_rate(case, TRICKLE, NO_USER_FACTS, any_engine=True).profile
        pools, lengths = (pool_of(profile),), (np.full(1, int(ISL)), np.full(1, int(OSL)))
        tier = Tier("chat", ttft_s=1.0, tbt_s=0.1)
        try:
            rate = capacity(SizingCase(profile, lengths, tier), requests=SIZED).max_rps
        except SimulationError:  # too slow for the limits: at half of what goes through
            sized = RequestDraws(lengths, seed=0, requests=SIZED)
            rate = Trial(pools, sized, tier).saturated_rps() / 2
        answer = at_rate(case, rate, NO_USER_FACTS, any_engine=True)
        draws = RequestDraws(lengths, seed=1, requests=REPLAYED)
        log = Trial(pools, draws, tier).at(rate, draw=1).requests
        steady = slice(REPLAYED // 4, -REPLAYED // 4)  # of twice as many, in order of arrival
        for name in apart:
            ours, other = (
                getattr(answer, f"{name}_s"),
                float(getattr(log, f"{name}_s")[steady].mean()),
            )
            apart[name][f"{model} {gpu} {tp}"] = max(ours, other) / min(ours, other) - 1.0
    worst = {
        name: max(by_profile, key=lambda key: by_profile[key]) for name, by_profile in apart.items()
    }
    return {
        "size_agrees": max(max(by_profile.values()) for by_profile in apart.values()),
        "size_agrees_profiles": len(known),
        **{f"size_agrees_{name}": max(by_profile.values()) for name, by_profile in apart.items()},
        **{f"size_agrees_{name}_worst": worst[name] for name in apart},
    }
