"""Detect decode pools limited by throughput: even a full batch keeps the TBT limit."""

import numpy as np
import numpy.typing as npt

from simulation.fleet import Tier
from simulation.performance.profile import Profile, iteration_s


def full_batch_s(profile: Profile, isl: npt.ArrayLike, osl: npt.ArrayLike) -> float:
    """Return the seconds of a decode iteration with the largest batch, at mean context."""
    context = np.asarray(isl, np.float64).mean() + np.asarray(osl, np.float64).mean() / 2.0
    batch = float(profile.max_batch)
    return float(iteration_s(profile, batch, batch * context, 0.0, 0.0))


def decode_bound(
    bound: str, profile: Profile, tier: Tier, isl: npt.ArrayLike, osl: npt.ArrayLike
) -> str:
    """Return ``bound`` of a decode pool, or "throughput" instead of a wrong "tbt".

    If even a full batch keeps the TBT limit, late requests waited for a place.
    """
    within = bound == "tbt" and full_batch_s(profile, isl, osl) <= (tier.tbt_s or 0.0)
    return "throughput" if within else bound
