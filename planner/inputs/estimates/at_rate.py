"""Estimate a deployment at a request rate with Poisson arrivals, as sizes and plans do.

Requests are simulated one by one, on the profile that a scenario would use. Narrower instances on
the same GPUs are compared without simulation.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.errors import PlannerError
from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from planner.inputs.estimates.deployment_rows import deployment, named_fields, number
from planner.inputs.scenario.schema import Profile as Section
from planner.inputs.scenario.speeds import speed_of
from planner.inputs.scenario.user_facts import UserFacts
from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.estimate.estimate import Estimate, RefusedEstimate, estimate_rows
from simulation.performance.profile import Profile, iteration_s
from simulation.performance.specs import WIDTHS, Arrangement
from simulation.results import RequestLog, SimulationResult
from simulation.sizing.batch_queue import PoolShape, saturated_rps
from simulation.sizing.trial import WARM_UP, RequestDraws, Trial, extrapolated_share, pool_of
from simulation.sizing.workload import Workload

MOST_SIMULATED = 32_000  # simulated, as for sizes
MOST_TOKENS = 5e7  # of all simulated requests; there are fewer requests if they are long
LEAST_REQUESTS = 500  # simulated, however long they are
SEED = 0
NEARLY = 1.1  # up to this ratio to the closed-form saturation, a simulation decides
STEADY = 1e9  # rounds of the closed loop: requests do not start together
MOST_RPS = 1e6


@dataclass(frozen=True, slots=True)
class AtRate:
    """Mean times and load of one deployment at a request rate, in steady state."""

    rate: float  # requests/s
    most: float  # saturation rate, requests/s
    ttft_s: float
    tbt_s: float  # nan: every answer has one token
    ttft_99_s: float
    tbt_99_s: float
    in_flight: float  # mean requests that wait or run
    profile: Profile
    built_in: bool  # the profile is built in: measured, or transferred from measurements
    requests: int  # simulated
    outside: float  # share of iterations outside the profile's measured range


def at_rate(
    deployment: Deployment, rate: float, user_facts: UserFacts, *, any_engine: bool
) -> AtRate:
    """Return the times and the load of a deployment at ``rate`` requests/s, by simulation.

    The speed is that of a built-in profile (with ``any_engine``, also of another engine), or else
    that of a roofline. Raise PlannerError for a disaggregated deployment, for speculative decoding,
    and for a rate above saturation.
    """
    if deployment.prefill is not None or deployment.drafted > 0:
        feature = "prefill and decode apart" if deployment.prefill else "speculative decoding"
        raise PlannerError(
            f"rate with {feature} is not estimated. Give concurrency, or size a scenario with its "
            "profiles."
        )
    section = built_in_section(deployment, any_engine)
    name = deployment.shape.name
    model = user_facts.models[name] if name in user_facts.models else catalogue.model(name)
    model = replace(model, shape=deployment.shape)
    profile = speed_of(section or _roofline_section(deployment), model, deployment.gpu, user_facts)
    tokens = deployment.isl + deployment.osl
    requests = int(np.clip(MOST_TOKENS / tokens, LEAST_REQUESTS, MOST_SIMULATED))
    try:
        runs, max_rate = _runs_at(rate, deployment, profile, requests)
        times_s = [_steady_state_times(run.requests, profile.start_s) for run in runs]
    except SimulationError as problem:
        raise PlannerError(str(problem)) from None
    ttft_s, tbt_s, e2e_s = (np.concatenate(parts) for parts in zip(*times_s, strict=True))
    mean_ttft_s, ttft_99_s = _mean_and_99th(ttft_s)
    mean_tbt_s, tbt_99_s = _mean_and_99th(tbt_s)
    return AtRate(
        rate=rate,
        most=max_rate,
        ttft_s=mean_ttft_s,
        tbt_s=mean_tbt_s,
        ttft_99_s=ttft_99_s,
        tbt_99_s=tbt_99_s,
        in_flight=rate * float(e2e_s.mean()),
        profile=profile,
        built_in=section is not None,
        requests=3 * requests,  # the second simulation has twice as many
        outside=max(map(extrapolated_share, runs)),
    )


def _mean_and_99th(times_s: FloatArray) -> tuple[float, float]:
    """Return mean and 99th percentile of the known times; NaN without any."""
    known = times_s[np.isfinite(times_s)]
    if not known.size:
        return np.nan, np.nan
    return float(known.mean()), float(np.quantile(known, 0.99))


def _runs_at(
    rate: float, deployment: Deployment, profile: Profile, requests: int
) -> tuple[list[SimulationResult], float]:
    """Return two simulations at ``rate`` (requests/s), and the highest rate that is sustained.

    They simulate ``requests`` and twice as many requests. Raise PlannerError if ``rate`` is above
    the highest rate.
    """
    isl, osl = np.full(1, round(deployment.isl)), np.full(1, round(deployment.osl))
    instances = max(round(deployment.decode_workers or 1.0), 1)
    pool = PoolShape(instances=instances)
    max_rate = saturated_rps(profile, Workload(isl, osl, burstiness=1.0), pool)
    draws = RequestDraws((isl, osl), seed=SEED, requests=requests)
    trial = Trial((pool_of(profile, instances),), draws, Tier("asked"))
    if max_rate < rate <= NEARLY * max_rate:  # closed forms are not that accurate
        max_rate = max(max_rate, trial.saturated_rps())
    if rate > max_rate:
        raise PlannerError(
            f"rate is {rate:g} requests/s, but this deployment sustains at most "
            f"{max_rate:.3g}. Lower it, or add GPUs or workers."
        )
    # Two draws of requests, as for sizes. The second has twice as many.
    return [trial.at(rate, draw=draw) for draw in (0, 1)], max_rate


def _steady_state_times(
    log: RequestLog, start_s: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return TTFT, TBT and end-to-end times (s) of the requests that arrived in steady state.

    The warm-up takes WARM_UP mean lifetimes of a request, at most half of the run. At the end fewer
    requests run: the last mean lifetime is excluded too, at most a quarter of the run. ``start_s``
    is the profile's: each TTFT includes it, and ``first_token_s`` does not.
    """
    arrival_s = log.first_token_s - log.ttft_s + start_s
    lifetime_s, last_s = float(log.e2e_s.mean()), float(arrival_s.max())
    steady_from_s = min(WARM_UP * lifetime_s, last_s / 2)
    steady_to_s = last_s - min(lifetime_s, last_s / 4)
    steady = (arrival_s >= steady_from_s) & (arrival_s <= steady_to_s)
    return log.ttft_s[steady], log.tbt_s[steady], log.e2e_s[steady]


def requested_estimate(
    row: Mapping[str, Any], user_facts: UserFacts
) -> tuple[Deployment, AtRate | None]:
    """Return the deployment of a row, and its simulation if the row gives a request rate.

    The concurrency of the deployment is then the simulation's mean number of requests in flight. If
    the row has a concurrency or a batch, its rate is ignored and the second value is None.
    """
    fields = named_fields(row)
    if "rate" not in fields or "concurrency" in fields or "batch" in fields:
        return deployment(row, user_facts), None
    rate = number(fields["rate"], "rate")
    if not 0 < rate <= MOST_RPS:
        raise PlannerError(f"rate is {rate:g}. Give requests/s above 0, at most {MOST_RPS:,.0f}.")
    deployed = deployment({**fields, "concurrency": 1.0, "rounds": STEADY}, user_facts)
    at_this_rate = at_rate(deployed, rate, user_facts, any_engine="engine" not in fields)
    return replace(deployed, concurrency=max(at_this_rate.in_flight, 1.0)), at_this_rate


def compare_with_built_in(deployment: Deployment, estimate: Estimate) -> tuple[str, ...]:
    """Return a sentence on the TBT of the built-in profile, which scenarios use by default."""
    section = built_in_section(deployment, any_engine=True)
    if section is None:
        return ()
    profile = catalogue.profiles()[section.model, section.gpu, section.tp]
    batch, isl, osl = estimate.batch, deployment.isl, deployment.osl
    # Tokens that attention reads: of all requests, half-way through their answers; and the pairs of
    # tokens in one prompt.
    context, pairs = batch * (isl + osl / 2.0), isl * isl / 2.0
    decode_s = float(iteration_s(profile, batch, context, 0.0, 0.0))  # without prompts
    with_prompt_s = float(iteration_s(profile, batch, context, isl, pairs))
    # In steady state, a prompt starts in the share ``batch / osl`` of iterations.
    tbt_s = decode_s + batch / osl * (with_prompt_s - decode_s)
    engine = catalogue.engine_of(profile.provenance)
    origin = catalogue.engine_title(engine) if engine else "engine not named"
    change = tbt_s / estimate.tbt_s - 1.0
    side = "above" if change > 0 else "below"
    other = ", another engine" if engine not in ("", deployment.engine) else ""
    sentence = (
        f"plans use the built-in profile instead ({profile.provenance.kind}, {origin}{other}): its "
        f"TPOT at this load is {1e3 * tbt_s:.1f} ms, {abs(change):.0%} {side} this estimate"
    )
    if estimate.batch > profile.fitted_decodes:
        sentence += ", beyond its measured batches"
    return (sentence,)


def built_in_section(deployment: Deployment, any_engine: bool) -> Section | None:
    """Return the row of ``profiles`` in a scenario for the deployment's built-in profile.

    With ``any_engine``, its profile may be of another engine. None if there is no profile.
    """
    arrangement = deployment.decode
    # Profiles were measured with plain tensor parallelism, 16 bits and no adapters.
    is_plain = arrangement == Arrangement(
        tp=arrangement.tp, moe_tp=arrangement.moe_tp, moe_ep=arrangement.moe_ep
    )
    model, gpu, tp = deployment.shape.name, deployment.gpu.name, arrangement.tp
    profile = catalogue.profiles().get((model, gpu, tp))
    if profile is None or deployment.prefill or not is_plain or deployment.shape.adapters:
        return None
    engine = catalogue.engine_of(profile.provenance)
    if not any_engine and engine not in ("", deployment.engine):
        return None
    return Section(model=model, gpu=gpu, tp=tp)


def _roofline_section(deployment: Deployment) -> Section:
    """Return the row of ``profiles`` in a scenario for a roofline of the deployment.

    Raise PlannerError for a precision of the KV cache that scenarios do not have.
    """
    arrangement, adapters = deployment.decode, deployment.shape.adapters
    if arrangement.kv_cache not in ("bf16", "fp8"):
        raise PlannerError(f"kv_cache is {arrangement.kv_cache}; with a rate, give bf16 or fp8.")
    return Section.model_validate(
        {
            "model": deployment.shape.name, "gpu": deployment.gpu.name, "kind": "roofline",
            "engine": deployment.engine, "engine_version": deployment.version,
            "precision": arrangement.weights, "kv_precision": arrangement.kv_cache,
            **({"recv_interval": deployment.recv_interval}
               if deployment.engine == "sglang" else {}),
            **({"lora_rank": adapters.rank, "lora_active": adapters.active} if adapters else {}),
            **{name: getattr(arrangement, name) for name in WIDTHS},
        }
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One way to split the GPUs of a deployment into instances; all have equal concurrency."""

    gpus: int  # of an instance
    instances: float
    tokens_per_s: float  # of all instances together


def narrower_arrangements(arrangement: Arrangement) -> Iterator[Arrangement]:
    """Yield arrangements with half the tensor (and expert) parallelism, a quarter, and so on."""
    experts = "moe_ep" if arrangement.moe_ep > 1 else "moe_tp"
    while arrangement.tp % 2 == 0:
        half = max(getattr(arrangement, experts) // 2, 1)
        arrangement = replace(arrangement, tp=arrangement.tp // 2, **{experts: half})
        yield arrangement


def narrower_uses(deployment: Deployment, *, all_gpus: bool) -> list[GpuUse]:
    """Return the GPU use of deployments with fewer GPUs per instance than ``deployment`` has.

    With ``all_gpus``, more instances use all its GPUs, each with at least one request in flight.
    Otherwise there are as many instances, and GPUs stay idle. Empty if it is disaggregated.
    """
    if deployment.prefill is not None:
        return []
    narrower = []
    for arrangement in narrower_arrangements(deployment.decode):
        instances = deployment.decode_workers  # None: one
        if all_gpus:
            instances_per_old = deployment.decode.gpus / arrangement.gpus
            if instances_per_old > deployment.concurrency:
                continue
            instances = (instances or 1.0) * instances_per_old
        narrower.append(replace(deployment, decode=arrangement, decode_workers=instances))
    return gpu_uses(narrower)


def narrower_is_faster_sentence(deployment: Deployment) -> list[str]:
    """Return a sentence (in a list) if fewer GPUs have as many tokens/s as all of them; else []."""
    present, fewer = gpu_uses([deployment]), narrower_uses(deployment, all_gpus=False)
    if not present or not fewer:
        return []
    (all_gpus,) = present
    best = max(fewer, key=lambda use: use.tokens_per_s)
    if best.tokens_per_s < all_gpus.tokens_per_s:
        return []
    verb = "gives" if best.gpus == 1 else "give"
    sentence = (
        f"{best.gpus} of the {all_gpus.gpus} GPUs {verb} {best.tokens_per_s:,.0f} tokens/s here, "
        f"all as one group {all_gpus.tokens_per_s:,.0f}: collectives over the links of "
        f"{deployment.gpu.name} take more than the other GPUs add, so use smaller replicas"
    )
    all_used = narrower_uses(deployment, all_gpus=True)
    fastest = max(all_used, key=lambda use: use.tokens_per_s, default=None)
    if fastest is not None and fastest.tokens_per_s > best.tokens_per_s:
        gpus = f"{fastest.gpus} {'GPU' if fastest.gpus == 1 else 'GPUs'}"
        sentence += (
            f"; {fastest.instances:g} of {gpus} each give {fastest.tokens_per_s:,.0f} together"
        )
    return [sentence]


def gpu_uses(deployments: list[Deployment]) -> list[GpuUse]:
    """Return the GPU use of each deployment; those without an estimate are left out."""
    answers = estimate_rows(deployments, estimate_fit().calibration, efficiencies())
    return [
        GpuUse(deployment.decode.gpus, deployment.decode_workers or 1.0, answer.tokens_per_s)
        for deployment, answer in zip(deployments, answers, strict=True)
        if not isinstance(answer, RefusedEstimate)
    ]
