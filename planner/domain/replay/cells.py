"""Choose the number of equal cells for the replay of a fleet with too many requests."""

from math import ceil

import numpy as np

from planner.domain.study import Study
from planner.domain.traffic.sources import MAX_DRAWN

# Mean replicas per pool that a cell keeps at the peak. Replicas are whole, so with fewer the
# rounding would affect the results more than the policy does.
LEAST = 8


def cells_of(study: Study) -> int:
    """Return the number of equal cells into which the study's fleet is divided for a replay.

    It is the smallest that brings the requests of a cell down to ``traffic.max_replayed``. If
    requests are drawn, MAX_DRAWN limits them too. The pools of a cell keep at least LEAST replicas
    on average.
    """
    arriving = study.traffic.expected(*study.window.observed_s)  # ahead of it: about as many
    arriving *= float(study.window.grown.mean())
    limit = study.settings.traffic.max_replayed
    if study.window.ahead or study.traffic.binned:
        limit = min(limit, MAX_DRAWN)
    needed = ceil(arriving / limit)
    pools = np.maximum(study.pools(study.peak), study.pools(study.today))
    used = pools[pools > 0]
    return max(1, min(needed, int(used.mean()) // LEAST if used.size else 1))
