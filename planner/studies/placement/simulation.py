"""What a placement does to requests: the KV bandwidth that its switches leave, in the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.optimizer.placement import Measures, service_share
from planner.optimizer.placement.problem import Placement
from planner.optimizer.placement.scale_in import have
from planner.scenario.build import Hardware
from planner.studies.placement.services import Placed
from planner.studies.plain import as_json
from planner.studies.traffic.traffic import Traffic
from planner.studies.traffic.window import Window
from simulation.arrays import IntArray
from simulation.engine.run import simulate
from simulation.fleet import Fleet
from simulation.metrics import summarise
from simulation.policies.flat import Flat
from simulation.trace import Trace

HOUR_S = 3600.0
MOST_REQUESTS = 30_000  # of a replay: seconds rather than minutes for each method


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """The requests that placements are tried on."""

    trace: Trace
    duration_s: float
    start_s: float  # epoch


def busiest(traffic: Traffic, window: Window, seed: int) -> Load | None:
    """The busiest hour of the window (of the one before where it is ahead of the trace), or its
    first part where that has more than MOST_REQUESTS; None where nothing arrives."""
    demand = traffic.demand
    inside = np.flatnonzero(demand.inside(*window.observed_s))
    if not len(inside):
        return None
    amounts = np.nan_to_num(demand.requests[:, inside]).sum(axis=0)
    width = max(1, min(len(inside), round(HOUR_S / demand.bin_s)))
    sums = np.cumsum(np.r_[0.0, amounts])
    over = sums[width:] - sums[:-width]
    at = int(over.argmax())
    if over[at] <= 0:
        return None
    start_s, span = float(demand.edges_s[inside[at]]), width * demand.bin_s
    duration = min(span, float(np.ceil(span * MOST_REQUESTS / over[at])))
    return Load(traffic.requests(start_s, start_s + duration, seed), duration, start_s)


def placed_fleet(
    hardware: Hardware,
    services: Sequence[Placed],
    placement: Placement,
    found: Measures,
    *,
    worst: bool = False,
) -> tuple[Fleet, IntArray]:
    """The fleet that ``placement`` gives: what found a place, and links as its switches leave them
    (``worst``: as for the unit that is worst off). Also its instances by pool."""
    counts = np.zeros(hardware.minimum.shape, np.int64)
    share: dict[tuple[int, int, int], float] = {}
    for s, one in enumerate(services):
        present = have(placement, s, len(one.columns))
        for g, count in zip(one.columns, present, strict=True):
            counts[one.model, one.region, g] += count
            pair = service_share(found.units, s)
            if pair is not None:
                share[one.model, one.region, g] = pair[worst]
    fleet = hardware.fleet(counts)
    pools = []
    for pool, at in zip(fleet.pools, hardware.pool_index, strict=True):
        pool = replace(pool, minimum=min(pool.minimum, pool.initial))
        if pool.link is not None:
            rate = pool.link.bytes_s * max(1e-6, share.get(at, 1.0))
            pool = replace(pool, link=replace(pool.link, bytes_s=rate))
        pools.append(pool)
    index = tuple(np.array(hardware.pool_index).T)
    return replace(fleet, pools=tuple(pools)), counts[index]


FIGURES = (
    "arrived", "completed", "rejected", "unfinished", "ttft_ms", "tbt_ms", "e2e_ms",
    "slo_attainment",
)  # fmt: skip


def replayed(fleet: Fleet, counts: IntArray, load: Load, seed: int) -> dict[str, Any]:
    """TTFT, TBT and E2E (ms) and SLO attainment of a flat fleet on ``load``."""
    result = simulate(load.trace, fleet, Flat(counts), seed=seed, duration_s=load.duration_s)
    summary = summarise(result)
    figures = {name: as_json(getattr(summary, name)) for name in FIGURES}
    return figures | {"met": summary.slo_met}
