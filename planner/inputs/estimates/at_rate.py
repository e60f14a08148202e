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

REQUESTS = 32_000  # simulated requests, as for sizes
TOKENS, FEWEST = 5e7, 500  # most tokens in total: longer requests are fewer, but at least 500
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
    in_flight: float
    profile: Profile
    built_in: bool  # the profile is built in: measured, or transferred from measurements
    requests: int  # simulated
    outside: float  # share of iterations outside the profile's measured range


def at_rate(
    deployment: Deployment, rate: float, user_facts: UserFacts, *, any_engine: bool
) -> AtRate:
    """Simulate ``deployment`` at ``rate`` requests/s.

    With ``any_engine``, a built-in profile of any engine is used, as in a scenario that names no
    engine. Raises PlannerError for a disaggregated deployment, for speculative decoding, and for a
    rate above saturation.
    """
    if deployment.prefill is not None or deployment.drafted > 0:
        feature = "prefill and decode apart" if deployment.prefill else "speculative decoding"
        raise PlannerError(
            f"rate with {feature} is not estimated. Give concurrency, or size a scenario with its "
            "profiles."
        )
    section = built_in_section(deployment, any_engine)
    profile = _speed_profile(section or _roofline_section(deployment), deployment, user_facts)
    requests = int(np.clip(TOKENS / (deployment.isl + deployment.osl), FEWEST, REQUESTS))
    try:
        runs, max_rate = _runs_at(rate, deployment, profile, requests)
        logs = [_steady_state_times(run.requests, profile.start_s) for run in runs]
    except SimulationError as problem:
        raise PlannerError(str(problem)) from None
    ttft, tbt, e2e = (np.concatenate(parts) for parts in zip(*logs, strict=True))
    known_tbt = tbt[np.isfinite(tbt)]
    return AtRate(
        rate=rate,
        most=max_rate,
        ttft_s=float(ttft.mean()),
        tbt_s=float(known_tbt.mean()) if known_tbt.size else float("nan"),
        ttft_99_s=float(np.quantile(ttft, 0.99)),
        tbt_99_s=float(np.quantile(known_tbt, 0.99)) if known_tbt.size else float("nan"),
        in_flight=rate * float(e2e.mean()),
        profile=profile,
        built_in=section is not None,
        requests=3 * requests,  # the second draw has twice as many
        outside=max(map(extrapolated_share, runs)),
    )


def _runs_at(
    rate: float, deployment: Deployment, profile: Profile, requests: int
) -> tuple[list[SimulationResult], float]:
    """Return two simulations at ``rate`` (requests/s), and the highest rate that is sustained.

    Raises PlannerError if ``rate`` is above it.
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
    # Two draws of requests, as for sizes.
    return [trial.at(rate, draw=draw) for draw in (0, 1)], max_rate


def _steady_state_times(
    log: RequestLog, start_s: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return TTFT, TBT and end-to-end times (s) of the requests that arrived in steady state.

    Requests of the warm-up are excluded, and so are those of the last mean lifetime, because fewer
    requests run at the end. At most half and a quarter of a short run are excluded for these
    reasons.
    """
    arrival = log.first_token_s - log.ttft_s + start_s
    lifetime_s, last_s = float(log.e2e_s.mean()), float(arrival.max())
    begin_s = min(WARM_UP * lifetime_s, last_s / 2)
    end_s = last_s - min(lifetime_s, last_s / 4)
    steady = (arrival >= begin_s) & (arrival <= end_s)
    return log.ttft_s[steady], log.tbt_s[steady], log.e2e_s[steady]


def requested_estimate(
    row: Mapping[str, Any], user_facts: UserFacts
) -> tuple[Deployment, AtRate | None]:
    """Return the deployment of a row, and its simulation if the row gives a request rate.

    The concurrency of the deployment is then the simulation's mean number of requests in flight. A
    concurrency or batch in the row takes precedence over the rate.
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
    """Return a sentence with the TBT of the built-in profile at the same load.

    Empty if there is no such profile. A scenario that names no other profile uses the built-in one,
    so its sizes differ from the estimate.
    """
    section = built_in_section(deployment, any_engine=True)
    if section is None:
        return ()
    profile = catalogue.profiles()[section.model, section.gpu, section.tp]
    context = estimate.batch * (deployment.isl + deployment.osl / 2.0)
    pairs = deployment.isl * deployment.isl / 2.0  # of tokens in a prompt's attention
    decode_s = float(iteration_s(profile, estimate.batch, context, 0.0, 0.0))  # without prompts
    with_prompt_s = float(iteration_s(profile, estimate.batch, context, deployment.isl, pairs))
    # A prompt starts in ``batch / osl`` of the iterations.
    tbt_ms = 1e3 * (decode_s + estimate.batch / deployment.osl * (with_prompt_s - decode_s))
    engine = catalogue.engine_of(profile.provenance)
    origin = catalogue.engine_title(engine) if engine else "engine not named"
    beyond_words = (
        ", beyond its measured batches" if estimate.batch > profile.fitted_decodes else ""
    )
    other_engine = engine not in ("", deployment.engine)
    change = tbt_ms / (estimate.tbt_s * 1e3) - 1.0
    side = "above" if change > 0 else "below"
    return (
        f"Plans use the built-in profile ({profile.provenance.kind}, {origin}). Its TPOT at this "
        f"load is {tbt_ms:.1f} ms, {abs(change):.0%} {side} this estimate"
        + (", on another engine" if other_engine else "")
        + beyond_words,
    )


def built_in_section(deployment: Deployment, any_engine: bool = False) -> Section | None:
    """Return the scenario section of the deployment's built-in profile; None without one.

    A profile of another engine counts only with ``any_engine``.
    """
    where = deployment.decode
    # Profiles were measured with plain tensor parallelism, 16 bits and no adapters.
    is_plain = where == Arrangement(tp=where.tp, moe_tp=where.moe_tp, moe_ep=where.moe_ep)
    key = (deployment.shape.name, deployment.gpu.name, where.tp)
    profile = catalogue.profiles().get(key)
    if profile is None or deployment.prefill or not is_plain or deployment.shape.adapters:
        return None
    engine = catalogue.engine_of(profile.provenance)
    if not any_engine and engine not in ("", deployment.engine):
        return None
    return Section(model=key[0], gpu=key[1], tp=key[2])


def _roofline_section(deployment: Deployment) -> Section:
    """Return the section of a roofline profile for the deployment."""
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


def _speed_profile(section: Section, deployment: Deployment, user_facts: UserFacts) -> Profile:
    """Return the speed profile of a section for the deployment's shape."""
    name = deployment.shape.name
    model = user_facts.models[name] if name in user_facts.models else catalogue.model(name)
    return speed_of(section, replace(model, shape=deployment.shape), deployment.gpu, user_facts)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """One way to split GPUs into instances of ``gpus`` GPUs, with its tokens/s.

    All ways are compared at equal concurrency.
    """

    gpus: int
    instances: float
    tokens_per_s: float


def narrower_arrangements(arrangement: Arrangement) -> Iterator[Arrangement]:
    """Yield arrangements with half the tensor parallelism, a quarter, and so on, while even.

    The experts are spread over half as many GPUs each time too.
    """
    experts = "moe_ep" if arrangement.moe_ep > 1 else "moe_tp"
    while arrangement.tp % 2 == 0:
        half = max(getattr(arrangement, experts) // 2, 1)
        arrangement = replace(arrangement, tp=arrangement.tp // 2, **{experts: half})
        yield arrangement


def uses_of_deployment(deployment: Deployment) -> list[GpuUse]:
    """Return the GPU use of this one deployment, in a list; empty if it does not fit in memory."""
    return _gpu_uses([deployment])


def narrower_deployments(deployment: Deployment) -> list[GpuUse]:
    """Return deployments with the same number of narrower instances; the other GPUs stay idle."""
    if deployment.prefill is not None:
        return []
    narrower = narrower_arrangements(deployment.decode)
    return _gpu_uses([replace(deployment, decode=arrangement) for arrangement in narrower])


def widest_deployments(deployment: Deployment) -> list[GpuUse]:
    """Return deployments that use all GPUs for more and narrower instances.

    Each instance has at least one request in flight.
    """
    if deployment.prefill is not None:
        return []
    deployments = [
        replace(
            deployment,
            decode=arrangement,
            decode_workers=(deployment.decode_workers or 1.0) * more_instances,
        )
        for arrangement in narrower_arrangements(deployment.decode)
        if (more_instances := deployment.decode.gpus / arrangement.gpus) <= deployment.concurrency
    ]
    return _gpu_uses(deployments)


def narrower_is_faster_sentence(deployment: Deployment) -> list[str]:
    """Return a sentence if fewer GPUs are at least as fast, with the best use of all GPUs."""
    wide, *_ = uses_of_deployment(deployment) or (None,)
    fewer = narrower_deployments(deployment)
    if wide is None or not fewer:
        return []
    best = max(fewer, key=lambda way: way.tokens_per_s)
    if best.tokens_per_s < wide.tokens_per_s:
        return []
    gives = "gives" if best.gpus == 1 else "give"
    sentence = (
        f"{best.gpus} of the {wide.gpus} GPUs {gives} {best.tokens_per_s:,.0f} tokens/s here, all "
        f"as one group {wide.tokens_per_s:,.0f}: collectives over the links of "
        f"{deployment.gpu.name} take more than the other GPUs add, so use smaller replicas"
    )
    widest_use = max(widest_deployments(deployment), key=lambda way: way.tokens_per_s, default=None)
    if widest_use is not None and widest_use.tokens_per_s > best.tokens_per_s:
        gpus = f"{widest_use.gpus} GPU{'s'[: widest_use.gpus > 1]}"
        sentence += f"; {widest_use.instances:g} of {gpus} each give "
        sentence += f"{widest_use.tokens_per_s:,.0f} together"
    return [sentence]


def _gpu_uses(deployments: list[Deployment]) -> list[GpuUse]:
    """Return deployments with their estimated tokens/s; those without an estimate are left out."""
    answers = estimate_rows(deployments, estimate_fit().calibration, efficiencies())
    return [
        GpuUse(deployment.decode.gpus, deployment.decode_workers or 1.0, answer.tokens_per_s)
        for deployment, answer in zip(deployments, answers, strict=True)
        if not isinstance(answer, RefusedEstimate)
    ]
