"""Choose what of a window's traffic a replay takes in: one of equal cells, and requests in flight.

A fleet with too many requests is replayed as one cell of several. Requests that arrived before the
window may still be in flight as it begins.
"""

from math import ceil

import numpy as np

from planner.domain.study import Study
from planner.domain.traffic.sources import MAX_DRAWN
from simulation.arrays import FloatArray
from simulation.carry_over import in_flight
from simulation.trace import Trace

# Replicas that a cell keeps in a pool at the peak, on average. Replicas are whole, so with fewer
# the rounding would affect the results more than the policy does.
LEAST = 8
LONGEST_S = 3600.0  # before the window; requests from before that are taken to be done


def cells_of(study: Study) -> int:
    """Return the number of equal cells into which the study's fleet is divided for a replay.

    It is the smallest that brings the requests of a cell down to ``traffic.max_replayed``. If
    requests are drawn, MAX_DRAWN limits them too. A pool rounds up by half a replica per cell on
    average, and to one replica per cell at least. All of that together stays within the cost of
    half a replica in LEAST.
    """
    # A window after the end of the traffic has about as many requests as the observed one.
    arriving = study.traffic.expected_requests(*study.window.observed_s)
    arriving *= float(study.window.grown.mean())
    limit = study.settings.traffic.max_replayed
    if study.window.ahead or study.traffic.binned:
        limit = min(limit, MAX_DRAWN)
    needed = ceil(arriving / limit)
    if not study.hardware.pool_index:
        return 1  # no replica can serve; planning states why
    pools = np.maximum(study.pools(study.peak), study.pools(study.today))
    cells = np.arange(1, min(needed, int(pools.max(initial=1))) + 1)[:, None]
    rounded_up = np.where(pools > 0, np.maximum(cells / 2, cells - pools), 0.0)
    affordable = rounded_up @ study.replica_usd <= pools @ study.replica_usd / (2 * LEAST)
    return max(1, int(affordable.sum()))


def carried_into(study: Study) -> Trace | None:
    """Return the interactive requests in flight at the window's start, as a trace.

    They arrived before the window and are assumed to be served at the speed of a replica at its
    rated load. If the replay simulates one cell of the fleet, they are those of a cell. Return None
    if nothing is known before the window.
    """
    window, traffic = study.window, study.traffic
    ttft_s, tbt_s = _speeds_at_rated_load(study)
    longest = [
        ttft + tbt * float(osl.max(initial=1))
        for ttft, tbt, (_, osl) in zip(ttft_s, tbt_s, traffic.lengths, strict=True)
    ]
    since_s = max(window.start_s - min(max(longest), LONGEST_S), traffic.demand.start_s)
    if since_s >= window.start_s:
        return None
    before = traffic.requests(since_s, window.start_s, study.settings.seed, cells=study.cells)
    deferrable = [before.tiers.index(name) for name in traffic.deferrable if name in before.tiers]
    before = before.rows(~np.isin(before.tier, deferrable))
    carried = in_flight(before, ttft_s, tbt_s, window.start_s)
    return carried if len(carried) else None


def _speeds_at_rated_load(study: Study) -> tuple[FloatArray, FloatArray]:
    """Return each model's TTFT and TBT (s) at its rated load, ``[l]`` each; 0 if not known.

    They are means over its GPU types.
    """
    means: list[FloatArray] = []
    # Decode replicas have no TTFT, and prefill replicas no TBT.
    for field, role_without_it in (("ttft_s", "decode"), ("tbt_s", "prefill")):
        by_model: list[list[float]] = [[] for _ in study.hardware.models]
        for (m, g), (_, capacity) in study.sizes.capacity.items():
            seconds = getattr(capacity, field)
            if study.hardware.columns[g].role != role_without_it and np.isfinite(seconds):
                by_model[m].append(seconds)
        means.append(np.array([float(np.mean(s)) if s else 0.0 for s in by_model]))
    return means[0], means[1]
