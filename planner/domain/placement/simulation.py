"""Simulate requests with the KV bandwidth that the switches of a placement leave."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.domain.placement.methods import State
from planner.domain.placement.services import ServiceColumns
from planner.domain.serialise import MERGED
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import Window
from planner.inputs.scenario.build import Hardware
from planner.optimizer.placement import Units, service_share
from planner.optimizer.placement.problem import Placement
from planner.optimizer.placement.scale_in import placed_replicas
from simulation.arrays import IntArray
from simulation.engine.run import simulate
from simulation.fleet import HOUR_S, Fleet
from simulation.metrics import Percentiles, summarise
from simulation.policies.static import Static
from simulation.trace import Trace

MOST_REQUESTS = 30_000  # requests per replay, so that each method takes seconds, not minutes


@dataclass(frozen=True, slots=True, eq=False)
class ReplayLoad:
    """The requests that placements are simulated on."""

    trace: Trace
    duration_s: float
    start_s: float  # epoch


def busiest_load(
    traffic: Traffic,
    window: Window,
    seed: int,
    span_s: float = HOUR_S,
    most: int = MOST_REQUESTS,
) -> ReplayLoad | None:
    """Return the requests of the busiest ``span_s`` seconds of the window; None: nothing arrives.

    If the window is after the trace, use the time of equal length before it, without growth. If
    there are more than ``most`` requests, use only the first part.
    """
    demand = traffic.demand
    bins = np.flatnonzero(demand.inside(*window.observed_s))
    if not len(bins):
        return None
    requests_of_bins = np.nansum(demand.requests[:, bins], axis=0)
    span_bins = max(1, min(len(bins), round(span_s / demand.bin_s)))
    # The sum over each span is the difference of two cumulative sums.
    sums = np.cumsum(np.r_[0.0, requests_of_bins])
    requests = sums[span_bins:] - sums[:-span_bins]  # by first bin of the span
    busiest = int(requests.argmax())
    if requests[busiest] <= 0:
        return None
    start_s, whole_s = float(demand.edges_s[bins[busiest]]), span_bins * demand.bin_s
    # ``most`` requests arrive in about this part of the span.
    duration_s = min(whole_s, float(np.ceil(whole_s * most / requests[busiest])))
    return ReplayLoad(traffic.requests(start_s, start_s + duration_s, seed), duration_s, start_s)


def placed_fleet(
    hardware: Hardware,
    services: Sequence[ServiceColumns],
    placement: Placement,
    units: Units,
    *,
    worst: bool = False,
) -> tuple[Fleet, IntArray]:
    """Return the fleet of the placed replicas, and its replicas by pool.

    Links have the mean bandwidth that the switches leave to the ``units`` of a service. With
    ``worst``, they have that of the unit with the lowest bandwidth.
    """
    counts = np.zeros(hardware.minimum.shape, np.int64)
    shares = np.ones(hardware.minimum.shape)  # of the bandwidth
    for s, service in enumerate(services):
        placed_by_role = placed_replicas(placement, s, len(service.columns))
        share = 1.0
        mean_and_worst = service_share(units, s)
        if mean_and_worst is not None:
            mean_share, worst_share = mean_and_worst
            share = worst_share if worst else mean_share
        for g, count in zip(service.columns, placed_by_role, strict=True):
            counts[service.model, service.region, g] += count
            shares[service.model, service.region, g] = share
    fleet = hardware.fleet(counts)
    pools = []
    for pool, index in zip(fleet.pools, hardware.model_region_gpu, strict=True):
        link = pool.link
        if link is not None:
            # At least a millionth of the bandwidth: a rate of 0 would never end a transfer.
            link = replace(link, bytes_s=link.bytes_s * max(1e-6, float(shares[index])))
        pools.append(replace(pool, minimum=min(pool.minimum, pool.initial), link=link))
    by_pool = np.array([counts[index] for index in hardware.model_region_gpu], np.int64)
    return replace(fleet, pools=tuple(pools)), by_pool


@dataclass(frozen=True, slots=True)
class Replay:
    """The outcome of requests, their latencies in milliseconds, and SLO attainment by tier."""

    arrived: int
    completed: int
    rejected: int
    unfinished: int
    ttft_ms: Percentiles
    tbt_ms: Percentiles
    e2e_ms: Percentiles
    slo_attainment: dict[str, float | None]
    met: dict[str, bool]


@dataclass(frozen=True, slots=True)
class MethodReplay:
    """A replay with the mean KV bandwidth, and one with that of the worst unit if it differs."""

    replay: Replay = field(metadata={MERGED: True})
    worst_unit: Replay | None


def replay_state(
    hardware: Hardware, placed: Sequence[ServiceColumns], state: State, load: ReplayLoad, seed: int
) -> MethodReplay:
    """Return simulations of ``load`` on the services ``placed``, at mean and worst bandwidth.

    The bandwidth between prefill and decode replicas follows from the placement in ``state``.
    """
    mean, counts = placed_fleet(hardware, placed, state.placement, state.units)
    worst, _ = placed_fleet(hardware, placed, state.placement, state.units, worst=True)
    return MethodReplay(
        _replay(mean, counts, load, seed),
        None if worst.pools == mean.pools else _replay(worst, counts, load, seed),
    )


def _replay(fleet: Fleet, counts: IntArray, load: ReplayLoad, seed: int) -> Replay:
    """Return the simulation of ``load`` on a static fleet of ``counts [pools]`` replicas."""
    result = simulate(load.trace, fleet, Static(counts), seed=seed, duration_s=load.duration_s)
    summary = summarise(result)
    return Replay(
        arrived=summary.arrived,
        completed=summary.completed,
        rejected=summary.rejected,
        unfinished=summary.unfinished,
        ttft_ms=summary.ttft_ms,
        tbt_ms=summary.tbt_ms,
        e2e_ms=summary.e2e_ms,
        slo_attainment=summary.slo_attainment,
        met=summary.slo_met,
    )
