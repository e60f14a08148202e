"""Rate screened candidates by closed forms of queues, then by simulation (``sizing``)."""

from dataclasses import replace
from functools import partial

from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.percentiles import quantile
from simulation.results import SimulationResult
from simulation.search.values import Candidate, Instance, RatedCandidate, Requests
from simulation.sizing.batch_queue import Evaluation, PoolShape, evaluate_pool, saturated_rps
from simulation.sizing.batch_sizing import size_pool
from simulation.sizing.capacity import SizingCase, capacity, miss_shares
from simulation.sizing.pd_slo_split import role_tier
from simulation.sizing.trial import RequestDraws, Trial, pool_of, rates_around_limit

PRECISION = 0.02  # relative precision of a rate by closed forms
REQUESTS = 8_000  # per simulated rate; the second draw has twice as many
PD_REQUESTS = 4_000  # the same for disaggregated deployments
PD_PRECISION = 0.01  # relative precision of a simulated rate of these
# search for a rate from a guess: factor between steps, largest factor from the guess
STEP_FACTOR, MAX_FACTOR = 1.08, 4.0


def rate_by_closed_forms(candidate: Candidate, requests: Requests) -> RatedCandidate | None:
    """Return a candidate at its largest rate within the limits, by closed forms; None: no rate."""
    if candidate.prefill is not None:
        return _pair_by_closed_forms(candidate, candidate.prefill, requests)
    try:
        sized = size_pool(
            candidate.decode.profile, requests.workload, requests.tier, precision=PRECISION
        )
    except SimulationError:
        return None
    return _rated_candidate(candidate, sized.at, sized.bound_by, requests)


def rate_by_simulation(
    candidate: Candidate, requests: Requests, guess_rps: float, seed: int
) -> RatedCandidate | None:
    """Return a candidate at its largest rate within the limits, by simulation; None: no rate.

    ``guess_rps`` is the rate by closed forms.
    """
    if candidate.prefill is not None:
        return _pair_by_simulation(candidate, candidate.prefill, requests, guess_rps, seed)
    work = requests.workload
    try:
        sizing_case = SizingCase(
            candidate.decode.profile, (work.isl, work.osl), requests.tier, seed=seed
        )
        sized = capacity(sizing_case, requests=REQUESTS)
    except SimulationError:
        return None
    return RatedCandidate(
        candidate, sized.max_rps, sized.ttft_s, sized.tbt_s, sized.bound_by, "simulation"
    )


def _pair_by_closed_forms(
    candidate: Candidate, sender: Instance, requests: Requests
) -> RatedCandidate | None:
    """Return a prefill-decode pair at its largest rate by closed forms; None: no rate.

    Each role must meet its own tier (``role_tier``). ``sender`` is the prefill instance.
    """
    size_role = partial(size_pool, workload=requests.workload, precision=PRECISION)
    prefill_tier, decode_tier = (role_tier(requests.tier, role) for role in ("prefill", "decode"))
    prefill_pool = PoolShape("prefill", candidate.prefills)
    decode_pool = _decode_pool(candidate, sender)
    try:
        sized_prefill = size_role(sender.profile, tier=prefill_tier, pool=prefill_pool)
        sized_decode = size_role(candidate.decode.profile, tier=decode_tier, pool=decode_pool)
    except SimulationError:
        return None
    limiting = sized_prefill if sized_prefill.max_rps <= sized_decode.max_rps else sized_decode
    rated = at_rate(candidate, limiting.max_rps, requests)
    return None if rated is None else replace(rated, bound_by=limiting.bound_by)


def _decode_pool(candidate: Candidate, sender: Instance) -> PoolShape:
    """Return the decode pool of a pair, to which ``sender`` sends KV caches."""
    return PoolShape("decode", candidate.decodes, sender.link, candidate.prefills)


def _pair_by_simulation(
    candidate: Candidate,
    sender: Instance,
    requests: Requests,
    guess_rps: float,
    seed: int,
) -> RatedCandidate | None:
    """Return a pair at its largest rate, by a simulation of both pools together; None: no rate.

    Each role must meet its own tier (``role_tier``). ``sender`` is the prefill instance.
    """
    work, tier = requests.workload, requests.tier
    pools = (
        pool_of(sender.profile, candidate.prefills, role="prefill", link=sender.link),
        pool_of(candidate.decode.profile, candidate.decodes, role="decode"),
    )
    trial = Trial(pools, RequestDraws((work.isl, work.osl), seed=seed, requests=PD_REQUESTS), tier)

    def meets_limits(rate: float) -> bool:
        """Return whether two draws of requests meet the tier, and each role its target."""
        for draw in (0, 1):
            run = trial.at(rate, draw=draw)
            if not trial.meets_tier(run) or max(_miss_ratios(run, tier)) > 1.0:
                return False
        return True

    # Short runs do not reveal a queue that grows without end, so cap the rate at saturation.
    max_rps = min(
        trial.saturated_rps(),
        saturated_rps(sender.profile, work, PoolShape("prefill", candidate.prefills)),
        saturated_rps(candidate.decode.profile, work, _decode_pool(candidate, sender)),
    )
    limits_rps = rates_around_limit(
        meets_limits, guess_rps, step=STEP_FACTOR, lowest=guess_rps / MAX_FACTOR,
        highest=max_rps, precision=PD_PRECISION,
    )  # fmt: skip
    if limits_rps is None:
        return None
    met_rps, missed_rps = limits_rps
    missed_ttft, missed_tbt = _miss_ratios(trial.at(missed_rps), tier)
    bound_by = "ttft" if missed_ttft else "throughput"
    if missed_tbt > missed_ttft:
        bound_by = "tbt"
    log, attainment = trial.at(met_rps).requests, tier.attainment
    ttft_s, tbt_s = quantile(log.ttft_s, attainment), quantile(log.tbt_s, attainment)
    return RatedCandidate(candidate, met_rps, ttft_s, tbt_s, bound_by, "simulation")


def _miss_ratios(run: SimulationResult, tier: Tier) -> tuple[float, float]:
    """Return the shares that miss TTFT and TBT, over the shares that each role may let miss."""
    missed, no_misses = miss_shares(run.requests, tier), (0.0, 0.0)
    ttft_missed, _ = missed.get("ttft", no_misses)
    tbt_missed, _ = missed.get("tbt", no_misses)
    # Attainment targets of prefill and of decode; together they meet the tier.
    prefill_target = role_tier(tier, "prefill").attainment
    decode_target = role_tier(tier, "decode").attainment
    return ttft_missed / (1.0 - prefill_target), tbt_missed / (1.0 - decode_target)


def at_rate(candidate: Candidate, rate: float, requests: Requests) -> RatedCandidate | None:
    """Return a candidate at ``rate`` requests/s, by closed forms; None if it misses the limits."""
    workload = requests.workload.at(rate)
    tier, sender = requests.tier, candidate.prefill
    if sender is None:
        aggregated = evaluate_pool(candidate.decode.profile, workload)
        if aggregated.attainment(tier) < tier.attainment:
            return None
        return _rated_candidate(candidate, aggregated, "", requests)
    prefill_pool = PoolShape("prefill", candidate.prefills)
    prefill = evaluate_pool(sender.profile, workload, prefill_pool)
    decode_pool = _decode_pool(candidate, sender)
    decode = evaluate_pool(candidate.decode.profile, workload, decode_pool)
    if not (prefill.stable and decode.stable):
        return None
    attained = prefill.ttft.share_within(tier.ttft_s) * decode.tbt.share_within(tier.tbt_s)
    if attained < tier.attainment:
        return None
    rated = _rated_candidate(candidate, decode, "", requests)
    return replace(rated, ttft_s=prefill.ttft.quantile(tier.attainment))


def _rated_candidate(
    candidate: Candidate, evaluated: Evaluation, bound_by: str, requests: Requests
) -> RatedCandidate:
    """Return a candidate with the rate and latencies of ``evaluated``."""
    attainment = requests.tier.attainment
    ttft_s, tbt_s = evaluated.ttft.quantile(attainment), evaluated.tbt.quantile(attainment)
    return RatedCandidate(candidate, evaluated.rate, ttft_s, tbt_s, bound_by, "closed forms")
