"""A deployment at requests/s that come as they come, as sizes and plans have it: replayed request
by request on the profile that a scenario would take for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner import catalogue
from planner.errors import PlannerError
from planner.estimates.estimating import deployment, named_fields, number
from planner.scenario.known import Known
from planner.scenario.schema import Profile as Section
from planner.scenario.speeds import speed_of
from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.performance.estimate.arranging import Deployment
from simulation.performance.estimate.estimate import Estimate
from simulation.performance.fitting.compare import stated_error
from simulation.performance.profile import Profile, iteration_s, provenance_at
from simulation.performance.specs import Arrangement
from simulation.results import RequestLog
from simulation.sizing.batch_queue import saturated
from simulation.sizing.trial import WARM_UP, Trial, outside_of, pool_of
from simulation.sizing.workload import Workload

REQUESTS = 32_000  # replayed, Poisson arrivals, as for sizes
TOKENS, FEWEST = 5e7, 500  # of them all, beyond which there are fewer requests, down to
SEED = 0
NEARLY = 1.1
STEADY = 1e9  # rounds: nobody starts together
MOST_RPS = 1e6
WIDTHS = ("tp", "pp", "attention_dp", "moe_tp", "moe_ep")


@dataclass(frozen=True, slots=True)
class AtRate:
    """Means over requests, in steady state."""

    rate: float  # requests/s
    most: float  # that go through with an endless queue
    ttft_s: float
    tbt_s: float  # nan where every answer has one token
    ttft_99_s: float
    tbt_99_s: float
    in_flight: float
    profile: Profile
    built_in: bool  # measured, or carried over from measurements
    requests: int  # replayed
    outside: float  # share of iterations beyond what the profile was measured on


def at_rate(given: Deployment, rate: float, known: Known, *, any_engine: bool) -> AtRate:
    """Raises PlannerError where it cannot be answered. With ``any_engine`` a built-in profile
    counts whatever it was measured on, as in a scenario that names none."""
    without = {
        "prefill and decode apart": given.prefill is not None,
        "speculative decoding": given.drafted > 0,
    }
    if what := next((name for name, there in without.items() if there), None):
        raise PlannerError(
            f"rate with {what} is not estimated; give concurrency, or size a scenario with its "
            "profiles."
        )
    section = built_in_section(given, any_engine)
    profile = _speed(section or _computed(given), given, known)
    isl, osl = np.full(1, round(given.isl)), np.full(1, round(given.osl))
    instances = max(round(given.decode_workers or 1.0), 1)
    requests = int(np.clip(TOKENS / (given.isl + given.osl), FEWEST, REQUESTS))
    try:
        most = saturated(profile, Workload(isl, osl, burstiness=1.0), instances=instances)
        trial = Trial((pool_of(profile, instances),), (isl, osl), Tier("asked"), seed=SEED,
                      requests=requests)  # fmt: skip
        if most < rate <= NEARLY * most:  # closed forms are no judges of so little
            most = max(most, trial.saturated_rps())
        if rate > most:
            raise PlannerError(
                f"rate is {rate:g} requests/s and {most:.3g} is the most that go through this "
                "deployment; give less, or more GPUs or workers."
            )
        runs = [trial.at(rate, draw=draw) for draw in (0, 1)]
        logs = [_settled(run.requests, profile.start_s) for run in runs]
    except SimulationError as problem:
        raise PlannerError(str(problem)) from None
    ttft, tbt, whole = (np.concatenate(parts) for parts in zip(*logs, strict=True))
    there = tbt[np.isfinite(tbt)]
    return AtRate(
        rate=rate,
        most=most,
        ttft_s=float(ttft.mean()),
        tbt_s=float(there.mean()) if there.size else float("nan"),
        ttft_99_s=float(np.quantile(ttft, 0.99)),
        tbt_99_s=float(np.quantile(there, 0.99)) if there.size else float("nan"),
        in_flight=rate * float(whole.mean()),
        profile=profile,
        built_in=section is not None,
        requests=3 * requests,
        outside=max(map(outside_of, runs)),
    )


def _settled(log: RequestLog, start_s: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """TTFT, TBT and end to end of those that came when the deployment was as full as it will be."""
    arrival = log.first_token_s - log.ttft_s + start_s
    life, last = float(log.e2e_s.mean()), float(arrival.max())
    judged = (arrival >= min(WARM_UP * life, last / 2)) & (arrival <= last - min(life, last / 4))
    return log.ttft_s[judged], log.tbt_s[judged], log.e2e_s[judged]


def asked_for(row: Mapping[str, Any], known: Known) -> tuple[Deployment, AtRate | None]:
    """The deployment that a row describes, at its requests in flight or at its rate; then it is at
    as many in flight as come of that, in steady traffic."""
    fields = named_fields(row)
    if "rate" not in fields or "concurrency" in fields or "batch" in fields:
        return deployment(row, known), None
    rate = number(fields["rate"], "rate")
    if not 0 < rate <= MOST_RPS:
        raise PlannerError(f"rate is {rate:g}; give requests/s above 0, at most {MOST_RPS:,.0f}.")
    given = deployment({**fields, "concurrency": 1.0, "rounds": STEADY}, known)
    at = at_rate(given, rate, known, any_engine="engine" not in fields)
    return replace(given, concurrency=max(at.in_flight, 1.0)), at


def at_rate_words(answer: Mapping[str, Any], at: AtRate, osl: float) -> dict[str, Any]:
    """What an answer says otherwise where a rate was asked for: its times are those of the replay,
    and the closed loop's stand beside them."""
    tokens, power = at.rate * osl, float(answer["power_w"])
    tbt_ms = at.tbt_s * 1e3 if np.isfinite(at.tbt_s) else float(answer["tbt_ms"])
    error = stated_error(at.profile) if at.built_in else None
    said, provenance = answer["expected_error"], provenance_at(at.profile, at.outside)
    if error is not None:
        both = {
            "ttft": error.median,
            "tbt": error.median,
            "ttft_90": error.p95,
            "tbt_90": error.p95,
        }
        said = {**said, **both, "basis": f"{error.quantity}: {error.against}"}
    return {
        "ttft_ms": at.ttft_s * 1e3,
        "tbt_ms": tbt_ms,
        "tokens_per_s": tokens,
        "j_per_token": power / tokens,
        "j_per_request": power / at.rate,
        "profile": at.profile.kind,
        "provenance": {
            **answer["provenance"],
            "kind": provenance.kind,
            "source": provenance.source,
        },
        "expected_error": said,
        "at_rate": {
            "rate_rps": at.rate,
            "most_rps": at.most,
            "in_flight": at.in_flight,
            "ttft_p99_ms": at.ttft_99_s * 1e3,
            "tbt_p99_ms": at.tbt_99_s * 1e3 if np.isfinite(at.tbt_99_s) else None,
            "closed_loop_ttft_ms": answer["ttft_ms"],
            "closed_loop_tbt_ms": answer["tbt_ms"],
            "by": f"{at.requests:,} requests replayed one by one, Poisson arrivals, as sizes are",
        },
    }


def built_in_beside(given: Deployment, one: Estimate) -> tuple[str, ...]:
    """What a built-in profile of the deployment says of the same load, as a sentence: that is what
    a scenario reads which names no other."""
    section = built_in_section(given, any_engine=True)
    if section is None:
        return ()
    profile = catalogue.profiles()[section.model, section.gpu, section.tp]
    context = one.batch * (given.isl + given.osl / 2.0)
    pairs = given.isl * given.isl / 2.0
    alone = float(iteration_s(profile, one.batch, context, 0.0, 0.0))
    mixed = float(iteration_s(profile, one.batch, context, given.isl, pairs))
    tbt_ms = 1e3 * (alone + one.batch / given.osl * (mixed - alone))
    engine = catalogue.engine_of(profile.provenance)
    on = f"measured on {catalogue.engine_title(engine)}" if engine else "whose engine is not named"
    beyond = ", beyond its measured batches" if one.batch > profile.fitted_decodes else ""
    other = engine not in ("", given.engine)
    return (
        f"sizes and plans of a scenario that names no other read the built-in profile, {on} "
        f"({profile.provenance.kind}): TBT {tbt_ms:.1f} ms at this load{beyond}, "
        f"{tbt_ms / (one.tbt_s * 1e3) - 1.0:+.0%} of the estimate"
        + ("; engines differ, so this is no check of it" if other else ""),
    )


def built_in_section(given: Deployment, any_engine: bool = False) -> Section | None:
    """As a scenario would name the built-in profile of the deployment; None where there is none, or
    one of another engine."""
    where = given.decode
    plain = Arrangement(tp=where.tp, moe_tp=where.moe_tp, moe_ep=where.moe_ep)
    key = (given.shape.name, given.gpu.name, where.tp)
    found = catalogue.profiles().get(key)
    if found is None or given.prefill is not None or where != plain or given.shape.adapters:
        return None
    engine = catalogue.engine_of(found.provenance)
    if not any_engine and engine not in ("", given.engine):
        return None
    return Section(model=key[0], gpu=key[1], tp=key[2])


def _computed(given: Deployment) -> Section:
    where, adapters = given.decode, given.shape.adapters
    if where.kv_cache not in ("bf16", "fp8"):
        raise PlannerError(f"kv_cache is {where.kv_cache}; with a rate, give bf16 or fp8.")
    return Section.model_validate(
        {
            "model": given.shape.name, "gpu": given.gpu.name, "kind": "roofline",
            "engine": given.engine, "engine_version": given.version, "precision": where.weights,
            "kv_precision": where.kv_cache,
            **({"recv_interval": given.recv_interval} if given.engine == "sglang" else {}),
            **({"lora_rank": adapters.rank, "lora_active": adapters.active} if adapters else {}),
            **{name: getattr(where, name) for name in WIDTHS},
        }
    )  # fmt: skip


def _speed(section: Section, given: Deployment, known: Known) -> Profile:
    name = given.shape.name
    model = known.models[name] if name in known.models else catalogue.model(name)
    return speed_of(section, replace(model, shape=given.shape), given.gpu, known)
