"""Into how many equal cells a fleet is cut for its replay, where all its requests are too many."""

from __future__ import annotations

from math import ceil

import numpy as np

from planner.studies.traffic.sources import MAX_DRAWN
from planner.studies.values import Study

# Instances of a pool that a cell keeps at the peak, on average: they come and go in whole ones, so
# that of fewer the rounding would tell more than the policy.
LEAST = 8


def cells_of(study: Study) -> int:
    """As few as bring the requests of the window down to ``traffic.max_replayed``, where any are
    drawn to what can be, and no more than leave each of them pools to speak of."""
    arriving = study.traffic.expected(*study.window.observed_s)  # ahead of it: about as many
    arriving *= float(study.window.grown.mean())
    most = study.settings.traffic.max_replayed
    if study.window.ahead or study.traffic.binned:
        most = min(most, MAX_DRAWN)
    needed = ceil(arriving / most)
    pools = np.maximum(study.pools(study.peak), study.pools(study.today))
    used = pools[pools > 0]
    return max(1, min(needed, int(used.mean()) // LEAST if used.size else 1))
