"""By when a request has to be done."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from simulation.arrays import FloatArray
from simulation.fleet import Tier
from simulation.trace import Trace


def due_s(trace: Trace, tiers: Sequence[Tier]) -> FloatArray:
    """Per request the second from which on it is late if it is not done, shape ``[requests]``: its
    arrival and the first of its tier's limits on TTFT and E2E. Without either a request that may
    wait is never due, and any other is as it arrives."""
    of_tier = {tier.name: _limit(tier) for tier in tiers}
    limits = np.array([of_tier[name] for name in trace.tiers] or [0.0], np.float64)
    out: FloatArray = trace.arrival_s + limits[trace.tier]
    return out


def _limit(tier: Tier) -> float:
    limits = [limit for limit in (tier.ttft_s, tier.e2e_s) if limit is not None]
    return min(limits, default=np.inf if tier.deferrable else 0.0)
