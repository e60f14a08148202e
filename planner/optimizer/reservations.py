"""Choose the GPUs to reserve for a horizon, and compute what they cost (the newsvendor problem).

A reserved GPU is paid in every period. It saves the on-demand price while it is in use. So the k-th
GPU of a type pays if it is in use in enough periods.
"""

import numpy as np

from planner.optimizer.figures import gpus_used
from planner.optimizer.problem import HorizonProblem
from simulation.arrays import FloatArray, IntArray


def gpus_in_use(problem: HorizonProblem, target: IntArray) -> IntArray:
    """Return the GPUs of replicas up or starting, ``[period, region, capacity row]``.

    A capacity row is a stock of GPUs, such as those of one type.
    """
    replicas = target.copy()
    if problem.lead:
        requested_starts = problem.requested_starts(target)
        for period in range(len(target)):
            # Starts of the last ``lead`` periods occupy GPUs, but do not serve yet.
            first = max(0, period - problem.lead + 1)
            replicas[period] += requested_starts[first : period + 1].sum(axis=0)
    return np.stack([gpus_used(problem.first, counts) for counts in replicas])


def cheapest_reservation(problem: HorizonProblem, target: IntArray) -> IntArray:
    """Return the number of GPUs to reserve at the lowest cost, ``[region, capacity row]``.

    ``target [period, model, region, GPU column]`` are the instances of a plan. All 0 without an
    offer of reservations.
    """
    if problem.reserved_usd is None or problem.on_demand_usd is None:
        return np.zeros_like(problem.first.capacity_gpus)
    gpus = gpus_in_use(problem, target)
    price_of_all_periods = problem.reserved_usd * len(target)
    # A GPU that is used in the k busiest periods saves their on-demand prices. Reserve the largest
    # count with a saving above the price. Arrays are [k - 1, region, capacity row].
    busiest_first = np.argsort(-gpus, axis=0, kind="stable")
    on_demand_usd = np.broadcast_to(problem.on_demand_usd, gpus.shape)
    saved_usd = np.take_along_axis(on_demand_usd, busiest_first, axis=0).cumsum(axis=0)
    sorted_counts = np.take_along_axis(gpus, busiest_first, axis=0)
    counts: IntArray = np.where(saved_usd > price_of_all_periods, sorted_counts, 0).max(axis=0)
    return counts


def reservation_usd(problem: HorizonProblem, target: IntArray, reserved: IntArray) -> FloatArray:
    """Return the extra cost per hour of ``reserved [region, capacity row]`` GPUs over on-demand.

    The shape is ``[period]``. A negative value is a saving.
    """
    if problem.reserved_usd is None or problem.on_demand_usd is None:
        return np.zeros(len(target))
    saved_usd = np.minimum(gpus_in_use(problem, target), reserved) * problem.on_demand_usd
    paid_usd = np.where(reserved > 0, problem.reserved_usd, 0.0) * reserved
    usd: FloatArray = (paid_usd - saved_usd).sum(axis=(1, 2))
    return usd
