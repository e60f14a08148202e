"""Read the reactive guard of a policy, which adds replicas to its schedule when load is high."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.domain.study import Setting
from simulation.policies import guarded_plan


class Staffing(NamedTuple):
    """Square-root staffing: n replicas have the capacity of scale * (n - loss * sqrt(n)).

    The unit is the capacity of a replica in a large pool. Small pools absorb less variation.
    """

    scale: float
    loss: float


@dataclass(frozen=True, slots=True)
class Guard:
    """The reactive guard of a pool: it adds replicas while the load exceeds their capacity.

    It is part of the policy LT-G. The first three fields are the capacity of one replica in a large
    pool. A replica of a smaller pool has less.
    """

    prompt_tokens_per_s: float  # NaN if the pool does no prefill
    output_tokens_per_s: float  # NaN if the pool does no decode
    requests_in_flight: float  # that run or wait
    scale_up_after_s: float  # load must exceed the target for this long before a step up
    keep_added_s: float  # added replicas stay for at least this long
    max_replicas: int
    # (pool size, share of the capacity above per replica), by rising size. Empty if all sizes have
    # the same capacity per replica, as in results of earlier releases.
    capacity_shares: tuple[tuple[int, float], ...] = ()
    allowed_late_share: float = np.nan  # of requests that may miss a limit; NaN: unknown
    ttft_limit_s: float = np.nan  # NaN: no such limit
    tpot_limit_s: float = np.nan

    def staffing(self, min_replicas: int, max_replicas: int) -> Staffing:
        """Return the staffing rule through the capacities of pools of these two sizes.

        If they are equal, the larger size is twice the smaller one. Without known capacities, a
        replica has that of one in a large pool. ``simulation.sizing.pool`` uses the same rule.
        """
        if not self.capacity_shares:
            return Staffing(scale=1.0, loss=0.0)
        small = max(min_replicas, 1)
        large = max_replicas if max_replicas > small else 2 * small
        # The share per replica, scale * (1 - loss / sqrt(n)), is linear in 1 / sqrt(n).
        inverse_small, inverse_large = np.array([small, large]) ** -0.5
        sizes, shares = np.array(self.capacity_shares).T
        # np.interp needs rising x. 1 / sqrt(n) falls with n, so interpolate over -1 / sqrt(n).
        share_small, share_large = np.interp(
            [-inverse_small, -inverse_large], -(sizes**-0.5), shares
        )
        slope = max(share_large - share_small, 0.0) / (inverse_small - inverse_large)
        scale = share_small + slope * inverse_small
        return Staffing(float(scale), float(slope / scale))


def values_by_pool(settings: Sequence[Setting]) -> dict[str, dict[str, float | str | bool]]:
    """Return the values of settings by name of the pool ("": of all pools), then by their name."""
    by_pool: dict[str, dict[str, float | str | bool]] = {}
    for setting in settings:
        by_pool.setdefault(setting.where, {})[setting.what] = setting.value
    return by_pool


def guards_of(settings: Sequence[Setting], max_replicas: int | None = None) -> dict[str, Guard]:
    """Return the guard of each pool, by its name in a result, from the settings of a policy.

    ``max_replicas`` further limits the replicas of a pool; None: only the policy does. Returns {}
    if the policy has no guard, or if an earlier release wrote the result.
    """
    by_pool = values_by_pool(settings)
    defaults = guarded_plan.GuardedPlan
    of_all_pools = {"rise_s": defaults.rise_s, "fall_s": defaults.fall_s} | by_pool.pop("", {})
    guards = {}
    for pool_name, values in by_pool.items():
        if guarded_plan.IN_FLIGHT not in values:
            continue  # a pool without a guard
        policy_maximum = int(values["replicas at most"])
        shares = [
            (pool_size, float(values[name]))
            for pool_size, name in guarded_plan.PER_POOL_OR_REGION.items()
            if name in values
        ]
        guards[pool_name] = Guard(
            prompt_tokens_per_s=float(values.get(guarded_plan.PROMPT_TPS, np.nan)),
            output_tokens_per_s=float(values.get(guarded_plan.OUTPUT_TPS, np.nan)),
            requests_in_flight=float(values[guarded_plan.IN_FLIGHT]),
            scale_up_after_s=float(of_all_pools["rise_s"]),
            keep_added_s=float(of_all_pools["fall_s"]),
            max_replicas=min(policy_maximum, max_replicas or policy_maximum),
            capacity_shares=tuple(shares),
            allowed_late_share=float(values.get(guarded_plan.ALLOWED_LATE_SHARE, np.nan)),
            ttft_limit_s=float(values.get(guarded_plan.TTFT_LIMIT, np.nan)),
            tpot_limit_s=float(values.get(guarded_plan.TPOT_LIMIT, np.nan)),
        )
    return guards
