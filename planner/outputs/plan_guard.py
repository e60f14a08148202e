"""Read the reactive guard of a policy, which adds replicas to its schedule when load is high."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.study import Setting
from simulation.policies import guarded_plan


@dataclass(frozen=True, slots=True)
class Guard:
    """The reactive guard of a pool: it adds replicas while the load exceeds their capacity.

    It is part of the policy LT-G. ``prompt_tps``, ``output_tps`` and ``in_flight`` are the capacity
    of one replica in a large pool. A replica of a smaller pool has less. ``shares`` has (pool size,
    share of that capacity per replica), by rising size. It is empty if all sizes have the same
    capacity per replica, as in results of earlier releases.
    """

    prompt_tps: float  # prompt tokens/s; NaN if the pool does no prefill
    output_tps: float  # output tokens/s; NaN if the pool does no decode
    in_flight: float  # requests that run or wait
    rise_s: float  # load must exceed the target for this long before a step up
    fall_s: float  # added replicas stay for at least this long
    most: int  # upper limit of replicas
    shares: tuple[tuple[int, float], ...] = ()
    allowed_late: float = np.nan  # share of requests that may miss a limit; NaN: unknown
    ttft_s: float = np.nan  # limits of latency; NaN: no such limit
    tpot_s: float = np.nan

    def staffing(self, least: int, most: int) -> tuple[float, float]:
        """Return (a, k): n replicas have the capacity of a * (n - k sqrt(n)) in a large pool.

        This is the square-root staffing rule of ``simulation.sizing.pool``, fitted through the pool
        sizes ``least`` and ``most`` of ``shares``.
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
    """Return the guard of each pool, by its name in a result, from the settings of a policy.

    ``most`` further limits the replicas of a pool; None: only the policy does. Returns {} if the
    policy has no guard, or if an earlier release wrote the result.
    """
    settings_of_pool: dict[str, dict[str, float | str | bool]] = {}
    for setting in settings:
        settings_of_pool.setdefault(setting.where, {})[setting.what] = setting.value
    shared = settings_of_pool.pop("", {})  # settings without a pool apply to all pools
    return {
        pool_name: Guard(
            prompt_tps=float(values.get(guarded_plan.PROMPT, np.nan)),
            output_tps=float(values.get(guarded_plan.OUTPUT, np.nan)),
            in_flight=float(values[guarded_plan.IN_FLIGHT]),
            rise_s=float(shared.get("rise_s", guarded_plan.GuardedPlan.rise_s)),
            fall_s=float(shared.get("fall_s", guarded_plan.GuardedPlan.fall_s)),
            most=min(int(values["replicas at most"]), most or sys.maxsize),
            shares=tuple(
                (size, float(values[name]))
                for size, name in guarded_plan.PER_POOL_OR_REGION.items()
                if name in values
            ),
            allowed_late=float(values.get(guarded_plan.ALLOWED, np.nan)),
            ttft_s=float(values.get(guarded_plan.TTFT_LIMIT, np.nan)),
            tpot_s=float(values.get(guarded_plan.TPOT_LIMIT, np.nan)),
        )
        for pool_name, values in settings_of_pool.items()
        if guarded_plan.IN_FLIGHT in values
    }
