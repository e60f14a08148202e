"""Simulate prefill and decode pools together, to check the result of ``pd_ratio``."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from simulation.fleet import KvLink, Routing
from simulation.percentiles import quantile
from simulation.sizing.capacity import miss_shares
from simulation.sizing.pd_ratio import PdService, RatioCapacity, closed_form_ratio, per_gpu
from simulation.sizing.queueing import decode_bound
from simulation.sizing.trial import (
    Pools,
    RequestDraws,
    Trial,
    pool_of,
    rates_around_limit,
    with_ample_memory,
)

PRECISION = 0.01  # relative precision of a rate
# search for a rate from a guess: factor between steps, largest factor from the guess
STEP_FACTOR, MAX_FACTOR = 1.1, 45.0
REQUESTS = 12_000  # per simulated rate; the second draw has twice as many
FREE_LINK_BYTES_S = 1e18  # bytes/s of a link without waiting

ReportProgress = Callable[[float], None]  # share of the work that is done


def no_report(done: float) -> None:
    """Report no progress."""


def simulate_ratio(
    service: PdService,
    prefill: int,
    decode: int,
    *,
    seed: int = 0,
    requests: int = REQUESTS,
    routing: Routing | None = None,
    start_rps: float = 0.0,
) -> RatioCapacity:
    """Return the capacity of one ratio by simulation, to 1%.

    Both pools together must meet the tier in both draws of requests. The search starts from
    ``start_rps``, or from the rate of the closed forms. The rate is 0 if none was found.
    ``routing`` None: the default of the simulator.
    """
    guess = closed_form_ratio(service, prefill, decode)
    pools = _pools(service, prefill, decode)
    draws = RequestDraws(
        (service.workload.isl, service.workload.osl),
        seed=seed,
        requests=requests,
        burstiness=service.burstiness,
        blocks=service.blocks,
    )
    trial = Trial(pools, draws, service.tier, routing)

    def meets_tier(rate: float) -> bool:
        """Return whether both draws meet the tier at ``rate`` requests/s."""
        return trial.meets_tier(trial.at(rate)) and trial.second_draw_meets_tier(rate)

    start = start_rps or guess.max_rps or trial.saturated_rps() / 2
    rates = rates_around_limit(
        meets_tier,
        start,
        step=STEP_FACTOR,
        lowest=start / MAX_FACTOR,
        highest=start * MAX_FACTOR,
        precision=PRECISION,
    )
    if rates is None:
        return replace(guess, max_rps=0.0, max_tps=0.0, bound_by="slo", side="")
    low, high = rates
    log = trial.at(low).requests
    bound, side = _binding_side(trial, service, pools, high)
    share = service.tier.attainment
    return replace(
        guess,
        max_rps=low,
        max_tps=low * service.tokens,
        bound_by=bound,
        side=side,
        ttft_s=quantile(log.ttft_s, share),
        tbt_s=quantile(log.tbt_s, share),
    )


def simulate_best_ratios(
    service: PdService,
    ratios: list[RatioCapacity],
    *,
    seed: int = 0,
    requests: int = REQUESTS,
    routing: Routing | None = None,
    report: ReportProgress = no_report,
) -> list[RatioCapacity]:
    """Return simulated capacities of the best of ``ratios`` and of the ratios next to it.

    If a neighbour of the best ratio turns out better, its neighbours are simulated too, and so on.
    ``ratios`` come from the closed forms or from the capacity of each pool. The closed forms ignore
    prefix caching. With shared prompts, each simulation therefore starts at its rate in ``ratios``.
    ``routing`` None: the default of the simulator.
    """
    rows = sorted(ratios, key=lambda ratio: ratio.prefill)
    centre = int(np.argmax([per_gpu(service, ratio) for ratio in rows]))
    simulated: dict[int, RatioCapacity] = {}  # by index in ``rows``
    while True:
        for i in range(max(centre - 1, 0), min(centre + 2, len(rows))):
            if i not in simulated:
                report(min(0.9, len(simulated) / 5))
                simulated[i] = simulate_ratio(
                    service, rows[i].prefill, rows[i].decode, seed=seed, requests=requests,
                    routing=routing,
                    start_rps=0.0 if service.blocks is None else rows[i].max_rps,
                )  # fmt: skip
        best = max(simulated, key=lambda i: per_gpu(service, simulated[i]))
        if best == centre:
            return [simulated[i] for i in sorted(simulated)]
        centre = best


def _pools(service: PdService, prefill: int, decode: int) -> Pools:
    """Return the prefill pool and the decode pool."""
    batching, caching = service.batching, service.blocks is not None
    return (
        pool_of(service.prefill, prefill, role="prefill", link=service.link, batching=batching,
                prefix_cache=caching),
        pool_of(service.decode, decode, role="decode", batching=batching),
    )  # fmt: skip


def _binding_side(trial: Trial, service: PdService, pools: Pools, rate: float) -> tuple[str, str]:
    """Return the binding constraint at ``rate``, which misses the tier, and the role to enlarge."""
    # If the first draw meets the limits at this rate, only the second shows which one is missed.
    draw = 1 if trial.meets_tier(trial.at(rate)) else 0
    run = trial.at(rate, draw=draw)
    limits = miss_shares(run.requests, service.tier)
    bound = max(limits, key=lambda name: limits[name].miss_share, default="throughput")
    side = "prefill" if bound == "ttft" else "decode"
    if not limits or limits[bound].miss_share == 0:
        return "throughput", side
    if side == "decode":
        # Counterfactuals: a free link, then unlimited memory.
        prefill, decode = pools
        with_free_link = (replace(prefill, link=KvLink(0.0, FREE_LINK_BYTES_S)), decode)
        if trial.meets_tier(trial.at(rate, with_free_link, draw=draw)):
            return "link", side
    if trial.meets_tier(trial.at(rate, with_ample_memory(pools), draw=draw)):
        return "memory", side
    lengths = service.workload.isl, service.workload.osl
    return decode_bound(bound, service.decode, service.tier, *lengths), side
