"""Progress of an instance within its run of iterations.

A run is a series of ``iterations`` with an unchanged batch that begins at ``run_start_s``. The
first takes ``iteration_s`` seconds. Each further one takes ``growth_s`` seconds more than the one
before (0 if only the batch matters). Boundaries are always computed from these numbers and never
summed up. So every part of the engine uses the same instant.
"""

from typing import Any

import numpy as np

from simulation.compiler import kernel


@kernel
def iteration_end(instance: Any, count: int) -> float:
    """Return the time at which the first ``count`` iterations of an instance's run have ended.

    Iteration 1 takes ``iteration_s``, and each later one ``growth_s`` seconds more than the one
    before.
    """
    return float(
        instance.run_start_s
        + (count * instance.iteration_s + 0.5 * instance.growth_s * count * (count - 1))
    )


@kernel
def _iterations_in(
    iteration_s: float, growth_s: float, elapsed_s: float, max_iterations: float
) -> int:
    """Return how many iterations of a run end within ``elapsed_s``, at most ``max_iterations``.

    The first takes ``iteration_s``, and each further one ``growth_s`` seconds more than the one
    before. Their number j solves growth_s j (j - 1) / 2 + iteration_s j = elapsed_s. The quadratic
    formula is used in the form without cancellation.
    """
    linear_s = iteration_s - 0.5 * growth_s
    root = np.sqrt(max(linear_s * linear_s + 2.0 * growth_s * elapsed_s, 0.0))
    return int(min(max(2.0 * elapsed_s / max(linear_s + root, 1e-300), 0.0), max_iterations))


@kernel
def iterations_done(instance: Any, t: float) -> int:
    """Return how many iterations of an instance's current run ended strictly before ``t``.

    The last one never counts: ``batching.finish_run`` ends it.
    """
    if instance.run_iterations <= 1:
        return 0
    elapsed_s = t - instance.run_start_s
    if instance.growth_s == 0.0:
        if instance.iteration_s <= 0.0:
            return int(instance.run_iterations - 1)
        done = int(np.ceil(elapsed_s / instance.iteration_s)) - 1
    else:
        done = _iterations_in(
            instance.iteration_s, instance.growth_s, elapsed_s, float(instance.run_iterations)
        )
    done = min(max(done, 0), int(instance.run_iterations - 1))
    # Rounding may put the estimate off by one: let the boundary times decide.
    while done > 0 and iteration_end(instance, done) >= t:
        done -= 1
    while done < instance.run_iterations - 1 and iteration_end(instance, done + 1) < t:
        done += 1
    return int(done)
