"""Choose the number of equal cells for the replay of a fleet with too many requests."""

from math import ceil

import numpy as np

from planner.domain.study import Study
from planner.domain.traffic.sources import MAX_DRAWN

# Replicas that a cell keeps in a pool at the peak, on average. Replicas are whole, so with fewer
# the rounding would affect the results more than the policy does.
LEAST = 8


def cells_of(study: Study) -> int:
    """Return the number of equal cells into which the study's fleet is divided for a replay.

    It is the smallest that brings the requests of a cell down to ``traffic.max_replayed``. If
    requests are drawn, MAX_DRAWN limits them too. A pool rounds up by half a replica per cell on
    average, and to one replica per cell at least. All of that together stays within the cost of
    half a replica in LEAST.
    """
    arriving = study.traffic.expected(*study.window.observed_s)  # ahead of it: about as many
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
