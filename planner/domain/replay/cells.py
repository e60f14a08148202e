"""Choose the requests of a replay: how many of the window's, and those in flight at its start.

A fleet with too many requests is divided into equal cells (shards), and one cell is replayed.
Requests that arrived before the window may still be in flight as it begins.
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
MIN_REPLICAS_PER_CELL = 8
MAX_REQUEST_S = 3600.0  # before the window; requests from before that are taken to be done


def cells_of(study: Study) -> int:
    """Return the number of equal cells (shards) into which the fleet is divided for a replay.

    It is the smallest that brings the requests of a cell down to ``traffic.max_replayed``. If
    requests are sampled from counts, MAX_DRAWN limits them too. More cells mean more rounding: each
    pool gets half a replica per cell more on average, and one replica per cell at least. The cost
    of that is limited to 1 / (2 * MIN_REPLICAS_PER_CELL) of the fleet's, even if the cells then
    have more requests.
    """
    if not study.hardware.model_region_gpu:
        return 1  # no replica can serve; planning states why
    # A window after the end of the traffic has about as many requests as the observed one.
    requests = study.traffic.expected_requests(*study.window.observed_s)
    requests *= float(study.window.growth_factors.mean())
    max_requests = study.settings.traffic.max_replayed
    if study.window.after_traffic or study.traffic.binned:
        max_requests = min(max_requests, MAX_DRAWN)
    peak, today = study.counts_by_pool(study.peak), study.counts_by_pool(study.today)
    counts = np.maximum(peak, today)  # replicas, [pool]
    usd_by_pool = study.replica_usd
    max_cells = min(ceil(requests / max_requests), int(counts.max(initial=1)))
    cells = np.arange(1, max_cells + 1)[:, None]
    # Replicas that rounding adds, [number of cells, pool].
    added_replicas = np.where(counts > 0, np.maximum(cells / 2, cells - counts), 0.0)
    affordable = added_replicas @ usd_by_pool <= counts @ usd_by_pool / (2 * MIN_REPLICAS_PER_CELL)
    return max(1, int(affordable.sum()))


def carried_into(study: Study) -> Trace | None:
    """Return the interactive requests in flight at the window's start, as a trace.

    They arrived before the window. They are assumed to be served at the speed of a replica at its
    rated load. If the replay simulates one cell (shard) of the fleet, they are those of one cell.
    Return None if there are none, or no traffic is known before the window.
    """
    window, traffic = study.window, study.traffic
    ttft_s, tbt_s = _speeds_at_rated_load(study)
    # By model: the seconds that its longest answer takes.
    longest_s = [
        ttft + tbt * float(osl.max(initial=1))
        for ttft, tbt, (_, osl) in zip(ttft_s, tbt_s, traffic.lengths, strict=True)
    ]
    since_s = max(window.start_s - min(max(longest_s), MAX_REQUEST_S), traffic.demand.start_s)
    if since_s >= window.start_s:
        return None
    before = traffic.requests(since_s, window.start_s, study.settings.seed, cells=study.cells)
    deferrable = [before.tiers.index(name) for name in traffic.deferrable if name in before.tiers]
    before = before.rows(~np.isin(before.tier, deferrable))
    carried = in_flight(before, ttft_s, tbt_s, window.start_s)
    return carried if len(carried) else None


def _speeds_at_rated_load(study: Study) -> tuple[FloatArray, FloatArray]:
    """Return each model's TTFT and TBT at its rated load in seconds, ``[model]`` each; 0: unknown.

    They are means over the GPU types that serve the model.
    """
    ttft_s: list[list[float]] = [[] for _ in study.hardware.models]  # of each model
    tbt_s: list[list[float]] = [[] for _ in study.hardware.models]
    for (m, g), (_, capacity) in study.sizes.capacity.items():
        # Decode replicas have no TTFT, and prefill replicas no TBT.
        role = study.hardware.columns[g].role
        if role != "decode" and np.isfinite(capacity.ttft_s):
            ttft_s[m].append(capacity.ttft_s)
        if role != "prefill" and np.isfinite(capacity.tbt_s):
            tbt_s[m].append(capacity.tbt_s)
    return _means(ttft_s), _means(tbt_s)


def _means(groups: list[list[float]]) -> FloatArray:
    """Return the mean of each group; 0 for an empty one."""
    return np.array([np.mean(group) if group else 0.0 for group in groups])
