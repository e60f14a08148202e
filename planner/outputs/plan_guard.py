"""Read the guard of a policy: the replicas that it adds above its schedule when load is high."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.study import Setting
from simulation.policies.guarded_plan import (
    ALLOWED,
    IN_FLIGHT,
    OUTPUT,
    PER_POOL_OR_REGION,
    PROMPT,
    TPOT_LIMIT,
    TTFT_LIMIT,
    GuardedPlan,
)


@dataclass(frozen=True, slots=True)
class Guard:
    """The reactive guard of a pool (LT-G): the capacity of one replica in a large pool.

    ``prompt_tps`` and ``output_tps`` are tokens/s, NaN if the pool does not do that work.
    ``shares`` are pairs of a pool size and the share of that capacity per replica at this size, by
    rising size. They are empty if every pool size has the same capacity per replica, as in results
    of earlier releases. ``allowed_late`` is the share of requests that may be later than
    ``ttft_s`` or ``tpot_s``; NaN if unknown, or without such a limit.
    """

    prompt_tps: float
    output_tps: float
    in_flight: float  # requests that run or wait
    rise_s: float  # load must exceed the target for this long before a step up
    fall_s: float  # added replicas stay for at least this long
    most: int  # upper limit of replicas
    shares: tuple[tuple[int, float], ...] = ()
    allowed_late: float = np.nan
    ttft_s: float = np.nan
    tpot_s: float = np.nan

    def staffing(self, least: int, most: int) -> tuple[float, float]:
        """Return (a, k): n replicas have the capacity of a * (n - k sqrt(n)) in a large pool.

        This is the square-root staffing rule of ``simulation.sizing.pool``, fitted through the pool
        sizes ``least`` and ``most``. Capacity is counted in replicas of a large pool.
        """
        if not self.shares:
            return 1.0, 0.0
        sizes, shares = np.array(self.shares).T
        least = max(least, 1)
        # The share per replica, a * (1 - k/sqrt(n)), is linear in x = 1/sqrt(n).
        x_least, x_most = np.array([least, most if most > least else 2 * least]) ** -0.5
        # np.interp needs rising x, and 1/sqrt(n) falls with n. Negate both.
        low, high = np.interp([-x_least, -x_most], -(sizes**-0.5), shares)
        slope = max(high - low, 0.0) / (x_least - x_most)
        a = low + slope * x_least
        return float(a), float(slope / a)


def guards_of(settings: Sequence[Setting], most: int | None = None) -> dict[str, Guard]:
    """Return the guard of each pool, from the settings of a policy in a result.

    ``most`` is another upper limit of replicas; None: no other. The result is empty if the policy
    has no guard, or if an earlier release wrote the result.
    """
    settings_of_place: dict[str, dict[str, float | str | bool]] = {}
    for setting in settings:
        settings_of_place.setdefault(setting.where, {})[setting.what] = setting.value
    shared = settings_of_place.pop("", {})  # settings without a place apply to all pools
    return {
        pool_name: Guard(
            prompt_tps=float(values.get(PROMPT, np.nan)),
            output_tps=float(values.get(OUTPUT, np.nan)),
            in_flight=float(values[IN_FLIGHT]),
            rise_s=float(shared.get("rise_s", GuardedPlan.rise_s)),
            fall_s=float(shared.get("fall_s", GuardedPlan.fall_s)),
            most=min(int(values["replicas at most"]), most or sys.maxsize),
            shares=tuple(
                (n, float(values[what])) for n, what in PER_POOL_OR_REGION.items() if what in values
            ),
            allowed_late=float(values.get(ALLOWED, np.nan)),
            ttft_s=float(values.get(TTFT_LIMIT, np.nan)),
            tpot_s=float(values.get(TPOT_LIMIT, np.nan)),
        )
        for pool_name, values in settings_of_place.items()
        if IN_FLIGHT in values
    }
