"""Due times of requests."""

from collections.abc import Sequence

import numpy as np

from simulation.arrays import FloatArray
from simulation.fleet import Tier
from simulation.trace import Trace


def due_s(trace: Trace, tiers: Sequence[Tier]) -> FloatArray:
    """Return the time in seconds at which each request is due, ``[requests]``.

    A request that is unfinished at this time is late. The time is its arrival plus the lower of the
    tier's TTFT and E2E limits. Without these limits, a deferrable request is never due (inf), and
    any other is due at its arrival.
    """
    due: FloatArray = trace.arrival_s + due_after_s(trace, tiers)[trace.tier]
    return due


def due_after_s(trace: Trace, tiers: Sequence[Tier]) -> FloatArray:
    """Return the seconds from arrival to the due time, by tier of the trace.

    It is the lower of the TTFT and E2E limits. Without them, it is inf for a deferrable tier, else
    0. A trace without tiers gets one 0.
    """
    due_by_tier = {}
    for tier in tiers:
        limits_s = [limit_s for limit_s in (tier.ttft_s, tier.e2e_s) if limit_s is not None]
        due_by_tier[tier.name] = min(limits_s, default=np.inf if tier.deferrable else 0.0)
    return np.array([due_by_tier[name] for name in trace.tiers] or [0.0], np.float64)
