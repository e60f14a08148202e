"""What bounds a decode pool whose fullest batch keeps the limit on gaps: its throughput."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from simulation.fleet import Tier
from simulation.performance.profile import Profile, iteration_s


def full_batch_s(profile: Profile, isl: npt.ArrayLike, osl: npt.ArrayLike) -> float:
    """Seconds of an iteration that decodes as many sequences as there may be, of mean context."""
    context = np.asarray(isl, np.float64).mean() + np.asarray(osl, np.float64).mean() / 2.0
    most = float(profile.max_batch)
    return float(iteration_s(profile, most, most * context, 0.0, 0.0))


def decode_bound(
    bound: str, profile: Profile, tier: Tier, isl: npt.ArrayLike, osl: npt.ArrayLike
) -> str:
    """``bound`` of a decode pool, but throughput for gaps: however full the batch its iterations
    keep the limit, so those that miss it waited for a place."""
    within = bound == "tbt" and full_batch_s(profile, isl, osl) <= (tier.tbt_s or 0.0)
    return "throughput" if within else bound
