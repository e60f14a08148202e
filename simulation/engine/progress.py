"""Progress of an instance within its run of iterations.

A run is a series of ``iterations`` with an unchanged batch that begins at ``run_start``. The first
takes ``iteration_s`` seconds. Each further one takes ``growth`` seconds more than the one before (0
if only the batch matters). Boundaries are always computed from these numbers and never summed up.
So every part of the engine uses the same instant.
"""

from typing import Any

import numpy as np

from simulation.compiler import kernel


@kernel
def iteration_end(instance: Any, j: int) -> float:
    """Return the time at which iteration ``j`` of an instance's run ends; 0: the run begins.

    Iteration 1 takes ``iteration_s``, and each later one ``growth`` seconds more than the one
    before.
    """
    return float(
        instance.run_start + (j * instance.iteration_s + 0.5 * instance.growth * j * (j - 1))
    )


@kernel
def _iterations_in(
    iteration_s: float, growth: float, elapsed_s: float, max_iterations: float
) -> int:
    """Return how many iterations of a run end within ``elapsed_s``, at most ``max_iterations``.

    The first takes ``iteration_s``, and each further one ``growth`` seconds more than the one
    before. Their number j solves growth j (j - 1) / 2 + iteration_s j = elapsed_s. The quadratic
    formula is used in the form without cancellation.
    """
    half = iteration_s - 0.5 * growth
    root = np.sqrt(max(half * half + 2.0 * growth * elapsed_s, 0.0))
    return int(min(max(2.0 * elapsed_s / max(half + root, 1e-300), 0.0), max_iterations))


@kernel
def iterations_done(instance: Any, t: float) -> int:
    """Return how many iterations of an instance's current run ended strictly before ``t``.

    The last one never counts: ``batching.finish_run`` ends it.
    """
    if instance.iterations <= 1:
        return 0
    elapsed_s = t - instance.run_start
    if instance.growth == 0.0:
        if instance.iteration_s <= 0.0:
            return int(instance.iterations - 1)
        done = int(np.ceil(elapsed_s / instance.iteration_s)) - 1
    else:
        done = _iterations_in(
            instance.iteration_s, instance.growth, elapsed_s, float(instance.iterations)
        )
    done = min(max(done, 0), int(instance.iterations - 1))
    # Rounding may put the estimate off by one: let the boundary times decide.
    while done > 0 and iteration_end(instance, done) >= t:
        done -= 1
    while done < instance.iterations - 1 and iteration_end(instance, done + 1) < t:
        done += 1
    return int(done)
