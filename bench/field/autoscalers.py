"""Autoscalers of other systems against their published laws, and against the real one.

- ``epp_law_error``: the largest difference of any signal or replica count of llm-d's laws to the
  published formulas, evaluated one by one in floats.
- ``planner_version``: the version of NVIDIA's Planner that is compared, or null.
- ``planner_replica_agreement``: share of scaling decisions, over all cases, at which the replicas
  that follow our Planner and the real one differ by at most one. Each runs its own simulation of
  one trace. ``planner_exact_agreement`` is the share without any difference.
- ``planner_configs_accepted``: share of exported PlannerConfigs that the real class takes.
- ``planner_cases``: the same share of each target, topology and budget.
"""

import logging
import os
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from math import ceil, floor, isnan
from typing import Any

import django
import numpy as np
from ruamel.yaml import YAML

from bench.field import real_planner
from planner.inputs.catalogue import profiles
from planner.policies.builtin.dynamo_planner import TARGETS
from planner.policies.choice import policy_of
from simulation.arrays import IntArray
from simulation.engine.run import simulate
from simulation.fleet import Fleet, KvLink, Pool
from simulation.policies.dynamo_planner import DynamoPlanner
from simulation.policies.endpoint_picker import (
    MAX_SATURATION,
    EndpointPicker,
    quantile,
    replicas_by_latency,
    replicas_by_total,
    replicas_guarded,
)
from simulation.policy import (
    LATENCY_BOUNDS_S,
    Actions,
    Observation,
    ScalingPolicy,
    actions_of,
)
from simulation.trace import Trace
from tests.simulation.builders import fleet, pool, trace
from tests.simulation.policies.observations import seen

CASES, SEED = 20_000, 0
TTFT_S, TBT_S = 3.0, 0.1  # SLO of the published example


def figures() -> dict[str, Any]:
    """Return the figures of this capability."""
    rng = np.random.default_rng(SEED)
    return {"epp_law_error": max(_laws(rng), _signal(rng)), **_planner()}


def _planner() -> dict[str, Any]:
    """Return how far our Planner agrees with the real one, or why it was not compared."""
    reason = real_planner.install()
    if reason:
        return {"planner_version": None, "planner_reason": reason,
                "planner_replica_agreement": None}  # fmt: skip
    logging.disable(logging.WARNING)  # the package logs every decision
    cases = {name: _targets_of_both(settings, pools) for name, settings, pools in _cases()}
    logging.disable(logging.NOTSET)
    ours, real = (np.concatenate([case[i] for case in cases.values()]) for i in range(2))
    return {
        "planner_version": f"ai-dynamo {real_planner.VERSION}",
        "planner_replica_agreement": real_planner.share_of_near_decisions(ours, real, 1),
        "planner_exact_agreement": real_planner.share_of_near_decisions(ours, real, 0),
        "planner_decisions": len(ours),
        "planner_configs_accepted": _configs_accepted(),
        "planner_cases": {
            name: real_planner.share_of_near_decisions(*case, 1) for name, case in cases.items()
        },
    }


def _configs_accepted() -> float:
    """Return the share of exports, of every target and topology, that the real config takes."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")
    django.setup()
    from planner.outputs.manifests import dynamo
    from planner.outputs.plans import rule_of
    from tests.planner.outputs.samples import asked, plan_of, pool_of

    real = import_module("dynamo.planner.config.planner_config").PlannerConfig
    taken = []
    for target, roles in product(TARGETS, (("mixed",), ("prefill", "decode"))):
        policy = policy_of(target, max_gpus=12, power_w=20_000, ttft_ms=900, itl_ms=90)
        pools = [pool_of((), f"chat-{role}", role) for role in roles]
        for document in dynamo.documents(asked(plan_of(*pools, rule=rule_of(policy, [])))):
            if document.body["kind"] == "ConfigMap":
                config = YAML(typ="safe").load(document.body["data"]["planner.yaml"])
                known = config.keys() <= real.model_fields.keys()
                taken.append(known and real.model_validate(config) is not None)
    return sum(taken) / len(taken)


def _cases() -> Iterator[tuple[str, dict[str, Any], tuple[Pool, ...]]]:
    """Yield the cases: every target with one pool and with two, predictors, and a budget."""
    one = (pool(PROFILE, initial=4, maximum=24, startup_s=60.0),)
    link = KvLink(131_072.0, 2.5e10)
    two = (pool(PROFILE, initial=3, maximum=24, startup_s=60.0, role="prefill", link=link),
           pool(PROFILE, initial=3, maximum=24, startup_s=60.0, role="decode"))  # fmt: skip
    for target in ("throughput", "latency", "load"):
        yield target, {"target": target}, one
        yield f"{target}, prefill and decode", {"target": target, "prefill_tokens": TOKENS}, two
    for predictor in ("constant", "arima", "kalman"):
        sla = {"target": "sla", "predictor": predictor, "ttft_s": 1.0, "itl_s": 0.1}
        yield f"sla, {predictor}", sla, one
        yield f"sla, {predictor}, prefill and decode", sla, two
    yield "latency, budget", {"target": "latency", "max_gpus": 6}, one
    yield "latency, budget, prefill and decode", {"target": "latency", "max_gpus": 8}, two


def _targets_of_both(
    settings: dict[str, Any], pools: tuple[Pool, ...]
) -> tuple[IntArray, IntArray]:
    """Return the target counts at every decision, ``[decisions, 2]``, by ours and by theirs."""
    served = fleet(*pools)
    settings = {**settings, "lengths": [LENGTHS] * len(pools)}
    wanted = []
    for kind in (DynamoPlanner, real_planner.RealPlanner):
        policy = ActionLog(kind(**settings))
        simulate(TRACE, served, policy, duration_s=SECONDS)
        counts = np.array([actions_of(answer).targets for answer in policy.answers])
        wanted.append(np.pad(counts, ((0, 0), (0, 2 - counts.shape[1]))))
    return wanted[0], wanted[1]


class ActionLog(ScalingPolicy):
    """Keep the answers of a policy."""

    def __init__(self, policy: ScalingPolicy) -> None:
        self._policy = policy
        self.answers: list[IntArray | Actions] = []
        self.name, self.interval_s = policy.name, policy.interval_s

    def reset(self, fleet: Fleet) -> IntArray:
        return self._policy.reset(fleet)

    def decide(self, observation: Observation) -> IntArray | Actions:
        self.answers.append(self._policy.decide(observation))
        return self.answers[-1]


def _bursty() -> Trace:
    """Return two hours of requests: a wave with a burst of two minutes in every twenty."""
    rng = np.random.default_rng(SEED)
    seconds = np.arange(SECONDS)
    rate = RATE * (1 + 0.7 * np.sin(2 * np.pi * seconds / 3600))
    rate *= np.where(seconds % 1200 < 120, 2.0, 1.0)
    arrival = np.repeat(seconds, rng.poisson(rate)) + 0.0
    arrival = np.sort(arrival + rng.random(len(arrival)))
    isl, osl = (np.maximum(1, rng.exponential(mean, len(arrival))) for mean in LENGTHS)
    return trace(arrival, isl.astype(int), osl.astype(int))


PROFILE = profiles()["llama-3.1-8b", "A100-80GB", 2]
LENGTHS, RATE, SECONDS, TOKENS = (1500.0, 150.0), 48.0, 7200, (6000.0, 500.0)
TRACE = _bursty()


def _laws(rng: np.random.Generator) -> float:
    """Return the largest error of the replicas asked for, on random readings."""
    s, total = rng.uniform(0, MAX_SATURATION, CASES), rng.uniform(0, 500, CASES)
    n = rng.integers(1, 60, CASES)
    r = rng.integers(0, n + 1)
    demand = total / 16.0
    guarded = replicas_guarded(demand, n, r)
    error = 0.0
    ours = replicas_by_latency(s, n, r, 0.55, 0.40)
    by_total = [replicas_by_total(total, target, n, 0.1) for target in (1.0, 16.0, 0.7, 1.5, 0.8)]
    for i in range(CASES):
        error = max(
            error, abs(int(ours[i]) - _replicas_by_published_law(s[i], int(n[i]), int(r[i])))
        )
        pending = int(n[i] - r[i])
        held = demand[i] if demand[i] <= n[i] else max(demand[i] - pending, float(n[i]))
        error = max(error, abs(float(guarded[i]) - held))
        for target, asked in zip((1.0, 16.0, 0.7, 1.5, 0.8), by_total, strict=True):
            usage = total[i] / (target * n[i])
            expected = n[i] if abs(usage - 1) <= 0.1 else ceil(total[i] / target)
            error = max(error, abs(int(asked[i]) - int(expected)))
    return error


def _replicas_by_published_law(s: float, n: int, r: int) -> int:
    """Return the replicas of the published control law, for one reading."""
    credit = r / n if 0 < r < n else 1.0
    if s > 0.55:
        return n + ceil(n * (s * credit / 0.55 - 1))
    return n - floor(n * (1 - s / 0.40)) if s < 0.40 else n


def _signal(rng: np.random.Generator) -> float:
    """Return the largest error of the clamped mean, over histograms of random latencies."""
    policy = EndpointPicker("latency", ttft_s=TTFT_S, tbt_s=TBT_S)
    policy.reset(fleet(pool(initial=4)))
    edges = [*LATENCY_BOUNDS_S, np.inf]
    raw: list[float] = []
    window: list[tuple[list[int], list[int]]] = []
    error = 0.0
    for look in range(2_000):
        seconds = rng.lognormal(rng.uniform(-2, 3), 0.8, rng.integers(0, 40))
        ttft = [int(((seconds > low) & (seconds <= high)).sum())
                for low, high in zip([0.0, *edges], edges, strict=False)]  # fmt: skip
        tbt = list(rng.permutation(ttft))
        policy.decide(_observation(15.0 * (look + 1), ttft, tbt))
        window = [*window, (ttft, tbt)][-4:]  # rates of one minute, read every 15 s
        sums = [[sum(column) for column in zip(*kind, strict=True)]
                for kind in zip(*window, strict=True)]  # fmt: skip
        shares = [_p90(sums[0], 1.0) / TTFT_S, _p90(sums[1], 0.1) / TBT_S]
        raw.append(
            min(max([share for share in shares if not isnan(share)], default=0.0), MAX_SATURATION)
        )
        mean = sum(raw[-3:]) / len(raw[-3:])  # 45 s
        error = max(error, abs(float(policy.saturation[0]) - mean))
        ours = quantile(np.array([sums[0]]), LATENCY_BOUNDS_S)[0]
        if not isnan(ours):
            error = max(error, abs(float(ours) - _p90(sums[0], 1.0)))
    return error


def _observation(time_s: float, ttft: list[int], tbt: list[int]) -> Observation:
    return seen(time_s, 4, ttft_counts=np.array([ttft]), tbt_counts=np.array([tbt]))


def _p90(counts: list[int], scale: float) -> float:
    """Return Prometheus' histogram_quantile(0.9, ...) of one histogram, bucket by bucket."""
    total = sum(counts)
    if not total:
        return float("nan")
    rank, below = 0.9 * total, 0
    for i, count in enumerate(counts[:-1]):
        if count and below + count >= rank:
            low = 0.0 if i == 0 else float(LATENCY_BOUNDS_S[i - 1]) * scale
            high = float(LATENCY_BOUNDS_S[i]) * scale
            return low + (high - low) * (rank - below) / count
        below += count
    return float(LATENCY_BOUNDS_S[-1]) * scale
