"""How far an instance is within its run of iterations.

A run of ``k`` iterations began at ``t0``; the first takes ``dt`` seconds and each further one
``growth`` more than the one before (0 when only the batch matters). Boundaries are never summed up
but always worked out from these, so that every part of the engine means the same instant.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiled import kernel


@kernel
def iteration_end(instance: Any, j: int) -> float:
    """When the ``j``-th iteration of the run ends; its beginning for 0."""
    return float(instance.t0 + (j * instance.dt + 0.5 * instance.growth * j * (j - 1)))


@kernel
def _root(dt: float, growth: float, x: float, most: float) -> int:
    """j of growth j (j - 1) / 2 + dt j = x, in the form that does not cancel."""
    half = dt - 0.5 * growth
    root = np.sqrt(max(half * half + 2.0 * growth * x, 0.0))
    return int(min(max(2.0 * x / max(half + root, 1e-300), 0.0), most))


@kernel
def iterations_done(instance: Any, t: float) -> int:
    """Iterations of the current run that ended strictly before ``t``; the last one never has."""
    if instance.k <= 1:
        return 0
    x = t - instance.t0
    if instance.growth == 0.0:
        if instance.dt <= 0.0:
            return int(instance.k - 1)
        j = int(np.ceil(x / instance.dt)) - 1
    else:
        j = _root(instance.dt, instance.growth, x, float(instance.k))
    j = min(max(j, 0), int(instance.k - 1))
    # The estimate may be off by rounding: let the boundary times themselves decide.
    while j > 0 and iteration_end(instance, j) >= t:
        j -= 1
    while j < instance.k - 1 and iteration_end(instance, j + 1) < t:
        j += 1
    return int(j)
