"""The judges of what the screen found: closed forms of queues, then simulation request by request,
as ``sizing`` has them."""

from __future__ import annotations

from dataclasses import replace

from simulation.errors import SimulationError
from simulation.fleet import KvLink
from simulation.search.values import Candidate, Judged, Rated, Wanted
from simulation.sizing.batch_queue import Evaluation, evaluate
from simulation.sizing.batch_sizing import size_pool
from simulation.sizing.capacity import capacity
from simulation.sizing.pd_judge import simulated
from simulation.sizing.pd_ratio import PdService, analytic

PRECISION = 0.02  # of a rate by closed forms
REQUESTS = 8_000  # simulated at each rate, and twice as many where these meet the tier
PD_REQUESTS = 4_000  # likewise, of a deployment apart


def by_closed_forms(candidate: Candidate, wanted: Wanted) -> Rated | None:
    """None where it meets the limits at no rate."""
    if candidate.prefill is not None:
        found = analytic(service_of(candidate, wanted), candidate.prefills, candidate.decodes)
        if found.max_rps <= 0.0:
            return None
        return Rated(
            candidate, found.max_rps, found.ttft_s, found.tbt_s, found.bound_by, "closed forms"
        )
    try:
        sized = size_pool(
            candidate.decode.profile, wanted.workload, wanted.tier, precision=PRECISION
        )
    except SimulationError:
        return None
    return _rated(candidate, sized.at, sized.bound_by, wanted)


def by_simulation(candidate: Candidate, wanted: Wanted, seed: int) -> Rated | None:
    """None where it meets the limits at no rate."""
    work = wanted.workload
    judged: Judged = "simulation"
    if candidate.prefill is not None:
        pair = simulated(
            service_of(candidate, wanted), candidate.prefills, candidate.decodes, seed=seed,
            requests=PD_REQUESTS,
        )  # fmt: skip
        if pair.max_rps <= 0.0:
            return None
        return Rated(candidate, pair.max_rps, pair.ttft_s, pair.tbt_s, pair.bound_by, judged)
    try:
        found = capacity(
            candidate.decode.profile, (work.isl, work.osl), wanted.tier, seed=seed,
            requests=REQUESTS,
        )  # fmt: skip
    except SimulationError:
        return None
    return Rated(candidate, found.max_rps, found.ttft_s, found.tbt_s, found.bound_by, judged)


def at_rate(candidate: Candidate, rate: float, wanted: Wanted) -> Rated | None:
    """By closed forms at a rate; None where that is not within the limits."""
    arriving = wanted.workload.at(rate)
    decode, first = candidate.decode, candidate.prefill
    if first is None:
        seen = evaluate(decode.profile, arriving)
        if seen.attained(wanted.tier) < wanted.tier.attainment:
            return None
        return _rated(candidate, seen, "", wanted)
    senders, tier = candidate.prefills, wanted.tier
    before = evaluate(first.profile, arriving, role="prefill", instances=senders)
    after = evaluate(
        decode.profile, arriving, role="decode", instances=candidate.decodes, link=first.link,
        senders=senders,
    )  # fmt: skip
    if not (before.stable and after.stable):
        return None
    if before.ttft.within(tier.ttft_s) * after.tbt.within(tier.tbt_s) < tier.attainment:
        return None
    found = _rated(candidate, after, "", wanted)
    return replace(found, ttft_s=before.ttft.quantile(tier.attainment))


def service_of(candidate: Candidate, wanted: Wanted) -> PdService:
    first = candidate.prefill
    assert first is not None
    return PdService(
        prefill=first.profile,
        decode=candidate.decode.profile,
        workload=wanted.workload,
        tier=wanted.tier,
        link=first.link or KvLink(0.0, 1.0),
    )


def _rated(candidate: Candidate, seen: Evaluation, bound_by: str, wanted: Wanted) -> Rated:
    share = wanted.tier.attainment
    return Rated(
        candidate,
        seen.rate,
        seen.ttft.quantile(share),
        seen.tbt.quantile(share),
        bound_by,
        "closed forms",
    )
