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
    """Return the seconds from arrival to the due time, by tier of the trace."""
    limit_by_name = {tier.name: _tier_limit_s(tier) for tier in tiers}
    return np.array([limit_by_name[name] for name in trace.tiers] or [0.0], np.float64)


def _tier_limit_s(tier: Tier) -> float:
    """Return the lower of the TTFT and E2E limits (s); without them, inf if deferrable, else 0."""
    limits = [limit for limit in (tier.ttft_s, tier.e2e_s) if limit is not None]
    return min(limits, default=np.inf if tier.deferrable else 0.0)
