"""Replicas that change roles against fixed roles, on bursts of prompts and of answers.

- ``role_switch_attainment_gain``: the smallest gain in SLO attainment, over all loads, of replicas
  that switch and take prompts over, against the best fixed split of as many GPUs. Loads count if
  the attainment of that split is in the published range of fixed systems.
- ``role_cases``: by load, the attainment of the best fixed split and of each kind of role change.
- ``role_published``: TokenScale's ranges (arXiv 2512.03416), fixed systems and its own.

The traffic is generated: steady conversations with bursts of long prompts in turn with bursts of
long answers. TokenScale's traces are not public in this form.
"""

from typing import Any

import numpy as np

from planner.inputs.catalogue import profiles
from simulation.engine.run import simulate
from simulation.fleet import Fleet, KvLink, Tier
from simulation.policies.static import Static
from simulation.policies.token_velocity import TokenVelocity
from simulation.policy import ScalingPolicy
from simulation.trace import Trace
from tests.simulation.builders import fleet, pool, trace

FIXED, THEIRS = (0.50, 0.88), (0.80, 0.96)  # TokenScale: attainment of others, and its own
LOADS = (1.1, 1.2, 1.3, 1.4, 1.5, 1.6)
REPLICAS, SECONDS, SEED = 6, 3600, 0
TTFT_S, TBT_S = 1.0, 0.03
PROFILE = profiles()["llama-3.1-8b", "A100-80GB", 2]
KINDS: dict[str, dict[str, bool]] = {
    "switch": {"takes_over": False},
    "take over": {"switches": False},
    "both": {},
}


def figures() -> dict[str, Any]:
    """Return the figures of this capability."""
    cases = {f"{load:g}": _case(load) for load in LOADS}
    counted = {load: case for load, case in cases.items() if FIXED[0] <= case["fixed"] <= FIXED[1]}
    gains = [case["both"] - case["fixed"] for case in counted.values()]
    return {
        "role_switch_attainment_gain": min(gains) if gains else None,
        "role_cases": cases,
        "role_loads_counted": list(counted),
        "role_published": {"fixed": FIXED, "tokenscale": THEIRS},
    }


def _case(load: float) -> dict[str, Any]:
    """Return the attainment of the best fixed split, and of changes that begin from it."""
    requests = _bursts(load)
    by_split = {
        prefill: _attainment(requests, prefill, Static([prefill, REPLICAS - prefill]))
        for prefill in range(1, REPLICAS)
    }
    best = max(by_split, key=lambda prefill: by_split[prefill])
    mean = (float(requests.input_tokens.mean()), float(requests.output_tokens.mean()))
    case: dict[str, Any] = {"fixed": by_split[best], "split": [best, REPLICAS - best]}
    for kind, how in KINDS.items():
        policy = TokenVelocity(lengths=[mean] * 2, ttft_s=TTFT_S, tbt_s=TBT_S, **how)
        case[kind] = _attainment(requests, best, policy)
    return case


def _fleet(prefill: int) -> Fleet:
    """Return the replicas with ``prefill`` of them in that role."""
    link = KvLink(131_072.0, 2.5e10)
    limits = {"minimum": 1, "maximum": REPLICAS}
    return fleet(
        pool(PROFILE, initial=prefill, role="prefill", link=link, **limits),
        pool(PROFILE, initial=REPLICAS - prefill, role="decode", **limits),
        tiers=[Tier("t", ttft_s=TTFT_S, tbt_s=TBT_S)],
    )


def _attainment(requests: Trace, prefill: int, policy: ScalingPolicy) -> float:
    """Return the share of requests within both limits."""
    log = simulate(requests, _fleet(prefill), policy, duration_s=SECONDS).requests
    within = (log.ttft_s <= TTFT_S) & (np.nan_to_num(log.tbt_s) <= TBT_S)
    return float(((log.outcome == 0) & within).mean())


def _bursts(load: float) -> Trace:
    """Return an hour of requests, ``load`` times the base rates."""
    rng = np.random.default_rng(SEED)
    at = np.arange(SECONDS)
    kinds = (  # requests/s, mean input and output tokens: the means of Azure's published services
        (8.0 + 0 * at, 1155, 211),  # conversation
        (np.where(at % 600 < 120, 20.0, 1.0), 2048, 28),  # code
        (np.where((at % 600 >= 300) & (at % 600 < 420), 30.0, 0.0), 400, 1000),  # long answers
    )
    columns = []
    for rate, isl, osl in kinds:
        arrival = np.repeat(at, rng.poisson(load * rate)) + 0.0
        arrival += rng.random(len(arrival))
        lengths = (np.maximum(1, rng.exponential(mean, len(arrival))) for mean in (isl, osl))
        columns.append((arrival, *lengths))
    arrival, inputs, outputs = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(arrival, kind="stable")
    return trace(arrival[order], inputs[order].astype(int), outputs[order].astype(int))
