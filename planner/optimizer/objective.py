"""Compute charges and limits of a plan: dollars, GPU-hours, energy, carbon, changes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.optimizer.problem import MEASURES, PlanningProblem, Totals
from simulation.arrays import FloatArray, IntArray

BUDGET, CARBON, CHURN, POWER = "budget", "carbon", "churn", "power"
# Start costs are at least this share of the hourly price. Of two plans with equal cost, the one
# that keeps running instances then wins. ``true_bound`` corrects the bound for it.
STICKINESS = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Cap:
    """A limit on many pools together, such as a budget or the power of a site.

    sum of per_instance * instances + sum of per_start * starts <= limit. Both arrays are ``[model,
    region, GPU column]``.
    """

    family: str  # BUDGET, CARBON, CHURN or POWER
    per_instance: FloatArray
    per_start: FloatArray  # never below 0
    limit: float
    where: str = "the whole plan"


def per_hour(problem: PlanningProblem, measure: str) -> FloatArray:
    """Return how much of ``measure`` an instance-hour uses, ``[model, region, GPU column]``.

    ``measure`` is usd, gpu_hours, kwh or kg. Energy and carbon are 0 where they are not known.
    """
    shape = problem.usd_per_hour.shape
    if measure == "usd":
        return problem.usd_per_hour
    if measure == "gpu_hours":
        return np.broadcast_to(problem.gpus_per_instance[:, None, :], shape).astype(float)
    kwh = np.zeros(shape) if problem.kw is None else problem.kw
    if measure == "kwh":
        return kwh
    if problem.kg_per_kwh is None:
        return np.zeros(shape)
    kg: FloatArray = kwh * problem.kg_per_kwh[None, :, None]
    return kg


def per_start(problem: PlanningProblem, measure: str) -> FloatArray:
    """Return how much of ``measure`` one start uses, ``[model, region, GPU column]``.

    ``measure`` is usd, gpu_hours, kwh or kg. A start takes start_usd / usd_per_hour hours until the
    instance serves; no time at a price of 0.
    """
    if measure == "usd":
        return problem.start_usd
    usd = problem.usd_per_hour
    hours = np.divide(problem.start_usd, usd, out=np.zeros_like(usd), where=usd > 0)
    return hours * per_hour(problem, measure)


def price(problem: PlanningProblem) -> FloatArray:
    """Return the charge for an instance-hour in US dollars, ``[model, region, GPU column]``."""
    return _weighted_sum(problem, per_hour)


def start_price(problem: PlanningProblem) -> FloatArray:
    """Return the charge for a start, ``[model, region, GPU column]`` in US dollars.

    It is for the time until the instance serves.
    """
    return _weighted_sum(problem, per_start)


def start_cost(problem: PlanningProblem) -> FloatArray:
    """Return the cost of a start in the objective, ``[model, region, GPU column]``.

    It is at least the share ``STICKINESS`` of an hour's price, to avoid needless changes.
    """
    return np.maximum(start_price(problem), STICKINESS * price(problem))


def true_bound(windows: Sequence[PlanningProblem], bound: float) -> float:
    """Return a lower bound on the true cost, from a ``bound`` on the program's objective.

    The objective charges at least the share ``STICKINESS`` of an instance's price for its start,
    which may exceed the true cost of the start. Let h be the largest excess, as a share of the
    price. A started instance also costs its price at least once, so all excesses together are at
    most h * true cost. So the true cost is at least objective / (1 + h).
    """
    smallest_share = STICKINESS
    for window in windows:
        hourly_usd, start_usd = price(window), start_price(window)
        has_price = hourly_usd > 0
        start_shares = start_usd[has_price] / hourly_usd[has_price]
        smallest_share = float(start_shares.min(initial=smallest_share))
    return max(0.0, bound) / (1.0 + STICKINESS - smallest_share)


def caps(problem: PlanningProblem) -> tuple[Cap, ...]:
    """Return the limits on the plan as a whole: budget, carbon, changes and power."""
    limits = []
    for family, limit, measure in (
        (BUDGET, problem.budget_usd, "usd"),
        (CARBON, problem.carbon_kg, "kg"),
    ):
        if np.isfinite(limit):
            use_per_hour, use_per_start = per_hour(problem, measure), per_start(problem, measure)
            limits.append(Cap(family, use_per_hour, use_per_start, float(limit)))
    if np.isfinite(problem.churn):
        # stops = current + starts - instances, so starts + stops = 2 starts - instances + current.
        # The constant ``current`` moves to the limit.
        ones = np.ones(problem.current.shape)
        limit = float(problem.churn) - float(problem.current.sum())
        limits.append(Cap(CHURN, -ones, 2 * ones, limit))
    return (*limits, *power_caps(problem))


def power_caps(problem: PlanningProblem) -> Iterator[Cap]:
    """Yield the power limits of racks and sites, in kW.

    A start adds nothing to the power of its instance.
    """
    if problem.power_kw is None or problem.kw is None:
        return
    for region, row in np.argwhere(np.isfinite(problem.power_kw)):
        kw = np.zeros(problem.kw.shape)
        columns = problem.under_power_limit(row)
        kw[:, region, columns] = problem.kw[:, region, columns]
        limit = float(problem.power_kw[region, row])
        yield Cap(POWER, kw, np.zeros(kw.shape), limit, problem.power_limit_name(region, row))


def totals(problem: PlanningProblem, target: IntArray) -> Totals:
    """Return what one hour of the replicas ``target`` uses: cost, GPU-hours, energy and carbon.

    Starts of replicas are included. The counts of starts and stops compare ``target`` with the
    present fleet.
    """
    starts = np.maximum(0, target - problem.current)
    stops = np.maximum(0, problem.current - target)
    usd, gpu_hours, kwh, kg = (
        float((per_hour(problem, name) * target + per_start(problem, name) * starts).sum())
        for name in MEASURES
    )
    return Totals(usd, gpu_hours, kwh, kg, int(starts.sum()), int(stops.sum()))


def _weighted_sum(
    problem: PlanningProblem, part: Callable[[PlanningProblem, str], FloatArray]
) -> FloatArray:
    """Return the sum of all measures times their weights in the objective.

    The shape is ``[model, region, GPU column]``. ``part`` is ``per_hour`` or ``per_start``.
    """
    total = np.zeros(problem.usd_per_hour.shape)
    for measure in MEASURES:
        weight: float = getattr(problem.weights, measure)
        if weight > 0:
            total = total + weight * part(problem, measure)
    return total
