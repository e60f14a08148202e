"""Find C(n), the largest rate at which a pool of n instances meets a tier's SLO.

A request that finds one instance busy goes to another, so C(n) is more than n times C(1). At tight
limits an instance of a large pool carries several times its capacity alone.

The gap to the saturated rate shrinks about as 1 / sqrt(n). This is square-root staffing: Halfin and
Whitt, "Heavy-Traffic Limits for Queues with Many Exponential Servers", Operations Research 29,
1981. The curve is interpolated in 1 / sqrt(n) between the simulated pool sizes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from simulation.arrays import FloatArray
from simulation.arrival_pattern import ArrivalPattern
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.sizing.capacity import MIN_LOAD, Capacity, SizingCase, capacity, case_trial
from simulation.sizing.trial import Trial, extrapolated_share

MAX_INSTANCES = 64  # instances; in larger pools each instance has the same capacity
SIMULATED = (2, 3, 4, 8, 16, 64)  # pool sizes
REQUESTS = 48_000  # per simulated rate; more if requests live long
MEAN_RESIDENCES = 10.0  # shortest run, in mean request lifetimes
MOST_REQUESTS = 400_000  # longest run
PRECISION = 0.004  # tolerance of the rate found, as a share of the saturated rate
MIN_GAIN = 0.005  # smallest relative gain for which larger pools are still simulated
FIRST_STEP = 0.04  # first step of the search for a rate, as a share of the saturated rate
# Share of the saturated rate; if one instance reaches it, no pool is simulated.
SATURATED_SHARE = 0.98
LARGE_POOL_SHARE = 0.97  # first guess for large pools, as a share of the saturated rate


@dataclass(frozen=True, slots=True)
class PoolPoint:
    """A simulated pool size with the largest rate that meets the tier, and figures of its runs."""

    instances: int
    max_rps: float  # whole pool
    requests: int  # counted requests of the last run
    runs: int
    outside: float = 0.0  # share of iterations outside the measured range of the profile


@dataclass(frozen=True, slots=True, eq=False)
class PoolCurve:
    """Capacity within the SLO of pools of 1, 2, ... N instances of one case."""

    max_rps: FloatArray  # [N] requests/s
    mean_isl: float
    alone: Capacity
    points: tuple[PoolPoint, ...]  # the simulated sizes, one instance first

    @property
    def tps(self) -> FloatArray:
        """Return the capacities in input tokens/s, ``[N]``."""
        return self.max_rps * self.mean_isl

    def planned_tps(self, max_instances: int) -> FloatArray:
        """Return the input tokens/s to plan with for pools of 1 to N instances, ``[N]``.

        Plans need a capacity per instance that never falls with the pool size. So each pool counts
        with the least capacity per instance of all pools at least as large, up to
        ``max_instances``. It rarely falls in simulations: only where the router sends long prompts
        to instances with short outputs.

        Pools beyond ``max_instances`` cannot be built, so they do not lower the smaller ones. Their
        values stay in the curve, which shows how many GPUs are missing.
        """
        n = np.arange(1, len(self.max_rps) + 1)
        tps_per_instance = self.tps / n
        in_largest_pool = tps_per_instance[: max(max_instances, 1)][-1]
        too_large = tps_per_instance[max_instances:]
        tps_per_instance[max_instances:] = np.maximum(too_large, in_largest_pool)
        # For each size, the least of all larger pools.
        least = np.minimum.accumulate(tps_per_instance[::-1])[::-1]
        return np.asarray(n * least, np.float64)


def pool_curve(
    case: SizingCase, *, alone: Capacity | None = None, max_instances: int = MAX_INSTANCES
) -> PoolCurve:
    """Return the capacity of pools of 1 to ``max_instances`` instances, the curve C(n).

    ``alone`` is the capacity of one instance, if already known. A few larger pools are simulated. A
    root search on the log odds of attainment finds the rate of each, with the same unit gaps and
    lengths in every run. Other sizes are interpolated in 1 / sqrt(n).

    Requests that arrive before the pool has filled up do not count. Raises SimulationError if one
    instance meets the tier at no rate of Poisson arrivals, or if no pool is large enough for
    bursts.
    """
    too_bursty: SimulationError | None = None
    try:
        lone_capacity = alone or capacity(case)
    except SimulationError as problem:
        if not isinstance(case.burstiness, ArrivalPattern):
            raise
        # One instance may be too few for the requests of one burst, where a pool is enough.
        too_bursty = problem
        poisson = capacity(replace(case, burstiness=1.0))
        lone_capacity = replace(
            poisson, max_rps=MIN_LOAD * poisson.max_rps, input_tps=MIN_LOAD * poisson.input_tps
        )
    one_instance = case_trial(case, 1, case.seed + 1, REQUESTS)
    full_rps = one_instance.saturated_rps()
    points = [PoolPoint(1, lone_capacity.max_rps, REQUESTS, 1, lone_capacity.outside)]
    if lone_capacity.max_rps < SATURATED_SHARE * full_rps:
        residence_s = float(np.nanmean(one_instance.at(lone_capacity.max_rps).requests.e2e_s))
        points += _larger_pools(case, points[0], full_rps, residence_s, max_instances)
    smallest_rps = 2 * PRECISION * points[-1].instances * full_rps
    if too_bursty is not None and points[-1].max_rps < smallest_rps:
        raise too_bursty
    return PoolCurve(
        max_rps=interpolate_points(points, max_instances),
        mean_isl=float(np.asarray(case.lengths[0], np.float64).mean()),
        alone=lone_capacity,
        points=tuple(points),
    )


def _larger_pools(
    case: SizingCase, alone: PoolPoint, full_rps: float, residence_s: float, max_instances: int
) -> list[PoolPoint]:
    """Return the capacity of some pools of up to ``max_instances`` instances, by simulation.

    ``full_rps`` is the saturated rate of one instance, ``residence_s`` the mean time of its
    requests.
    """
    points = [alone]
    for n in SIMULATED:
        if n > max_instances or _is_settled(points, full_rps):
            break
        needed = MEAN_RESIDENCES * residence_s * n * full_rps
        requests = int(np.clip(needed, REQUESTS, MOST_REQUESTS))
        trial = case_trial(case, n, case.seed + n, requests)
        guess = _extrapolated_share(points, n, full_rps)
        points.append(_largest_pool_rate(trial, n, full_rps, guess))
    return points[1:]


def curve_capacity(curve: FloatArray, instances: int) -> float:
    """Return the capacity of a pool of ``instances`` instances, in the unit of ``curve [N]``.

    ``curve`` has the capacity of 1 to N instances. Beyond N it is constant per instance.
    """
    size = min(instances, len(curve))
    return float(curve[size - 1]) * instances / size


def fewest_instances(curve: FloatArray, load: float) -> int:
    """Return the fewest instances that sustain ``load``, by a curve ``[N]`` in the same unit."""
    within = int(np.searchsorted(curve, load * (1.0 - 1e-12)))
    if within < len(curve):
        return max(1, within + 1)
    return int(np.ceil(load / (float(curve[-1]) / len(curve)) - 1e-9))


def interpolate_points(points: list[PoolPoint], max_instances: int = MAX_INSTANCES) -> FloatArray:
    """Interpolate the requests/s of pools of 1 to ``max_instances`` instances.

    Capacity per instance is linear in 1 / sqrt(n) between the simulated sizes, and constant beyond
    the last one.
    """
    n = np.arange(1, max_instances + 1)
    sizes = np.array([point.instances for point in points], float)
    rps_per_instance = np.array([point.max_rps for point in points]) / sizes
    # np.interp needs rising abscissae, hence 1 - 1 / sqrt(n).
    return np.asarray(n * np.interp(1.0 - n**-0.5, 1.0 - sizes**-0.5, rps_per_instance), np.float64)


def _extrapolated_share(points: list[PoolPoint], n: int, full_rps: float) -> float:
    """Return the share of the saturated rate that ``n`` instances sustain, from smaller pools.

    ``full_rps`` is the saturated rate of one instance. The share is about linear in 1 / sqrt(n), so
    the line through the two largest pools is continued. With one pool, it leads to
    ``LARGE_POOL_SHARE``.
    """
    # Coordinates of the line: x is 1 / sqrt(n), y the share.
    last, x = points[-1], 1.0 / sqrt(n)
    last_x, last_y = 1.0 / sqrt(last.instances), last.max_rps / (last.instances * full_rps)
    if len(points) == 1:
        return max(last_y, LARGE_POOL_SHARE - (LARGE_POOL_SHARE - last_y) * x)
    before = points[-2]
    before_x = 1.0 / sqrt(before.instances)
    before_y = before.max_rps / (before.instances * full_rps)
    share = last_y + (last_y - before_y) * (last_x - x) / (before_x - last_x)
    return float(np.clip(share, last_y / 2, 1.0))


def _is_settled(points: list[PoolPoint], full_rps: float) -> bool:
    """Return whether still larger pools would have about the same capacity per instance.

    ``full_rps`` is the saturated rate of one instance.
    """
    if len(points) < 2:
        return False
    rps_per_instance = points[-1].max_rps / points[-1].instances
    largest_rps = _extrapolated_share(points, MAX_INSTANCES, full_rps) * full_rps
    return abs(largest_rps / rps_per_instance - 1.0) < MIN_GAIN


def _largest_pool_rate(trial: Trial, n: int, full_rps: float, guess: float) -> PoolPoint:
    """Return the largest rate at which ``n`` instances meet the tier.

    ``full_rps`` is the saturated rate of one instance. The search begins at the share ``guess`` of
    ``n * full_rps``, and ends there at most.
    """
    requests_counted: list[int] = []
    outside: list[float] = []

    def excess_at(share: float) -> float:
        """Return ``excess_log_odds`` at a share of the saturated rate."""
        run = trial.at(share * n * full_rps)
        attained, judged_requests = trial.measured_attainment(run)
        requests_counted.append(judged_requests)
        outside.append(extrapolated_share(run))
        return excess_log_odds(attained, judged_requests, trial.tier)

    share = falling_root(excess_at, guess, FIRST_STEP, PRECISION)
    rps, runs = share * n * full_rps, len(requests_counted)
    return PoolPoint(n, rps, requests_counted[-1], runs, outside[-1])


def excess_log_odds(attained: float, requests: int, tier: Tier) -> float:
    """Return the log odds of ``attained`` minus those of the tier's target; 0 at the target.

    Shares are at least half a request of ``requests`` away from 0% and 100%, so that the result is
    finite.
    """
    half = 0.5 / requests
    share = min(max(attained, half), 1.0 - half)
    target = min(max(tier.attainment, half), 1.0 - half)
    return float(np.log(share / (1.0 - share)) - np.log(target / (1.0 - target)))


def falling_root(f: Callable[[float], float], guess: float, step: float, precision: float) -> float:
    """Return where the falling function ``f`` on (0, 1] crosses 0; 1 if it does not.

    ``precision`` is the absolute tolerance of the root. The method is regula falsi with the
    Illinois rule. Its first interval is found from ``guess``, with a first step of ``step``.
    """
    # Steps double until the root lies between low and high.
    low = high = min(guess, 1.0)
    f_low = f_high = f(low)
    while f_high >= 0.0:
        if high >= 1.0:
            return 1.0
        low, f_low = high, f_high
        high, step = min(1.0, high + step), 2.0 * step
        f_high = f(high)
    while f_low < 0.0:
        high, f_high = low, f_low
        low, step = max(low - step, low / 2.0), 2.0 * step
        if low < precision:
            return low
        f_low = f(low)
    last_moved = ""
    while True:
        middle = low + f_low / (f_low - f_high) * (high - low)
        if min(middle - low, high - middle) < precision / 2:
            return middle
        # Illinois rule: halve the value at an end that stays twice in a row, else it never moves.
        f_middle = f(middle)
        if f_middle >= 0.0:
            low, f_low = middle, f_middle
            if last_moved == "low":
                f_high /= 2.0
            last_moved = "low"
        else:
            high, f_high = middle, f_middle
            if last_moved == "high":
                f_low /= 2.0
            last_moved = "high"
