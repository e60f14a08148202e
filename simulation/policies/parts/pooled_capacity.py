"""Capacity of a pool whose instances each serve more in a larger pool."""

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.policies.parts.stability import ROUNDING


class PooledCapacity:
    """Conversion between instances and loads, pool by pool.

    A load is counted in instances of a large pool. ``shares [pools, N]`` is the capacity of each of
    1 to N instances relative to that, C(n)/n over C(N)/N. It rises with n, since a request that
    finds one instance busy goes to another, and is 1 from N on. So n instances serve n * share(n),
    about n - k sqrt(n) (square-root staffing: Halfin and Whitt, 1981; ``simulation.sizing.pool``).
    Without ``shares`` they serve n.
    """

    def __init__(self, pools: int, shares: FloatArray | None = None) -> None:
        share_of_each = np.ones((pools, 1)) if shares is None else np.asarray(shares, np.float64)
        n = np.arange(share_of_each.shape[1] + 1)
        # No instance serves nothing. Rounding must not make capacity fall with more instances.
        carried = np.concatenate([np.zeros((pools, 1)), share_of_each], axis=1) * n
        self.table: FloatArray = np.maximum.accumulate(carried, axis=1)

    def carried(self, counts: IntArray) -> FloatArray:
        """Return the load that ``counts [pools]`` instances serve."""
        max_count = self.table.shape[1] - 1
        within = np.minimum(counts, max_count)
        carried = self.table[np.arange(len(counts)), within]
        return np.asarray(carried + (counts - within), np.float64)

    def share(self, n: int) -> FloatArray:
        """Return the load that each of ``n`` instances serves, ``[pools]``."""
        return self.carried(np.full(len(self.table), n)) / n

    def fewest(self, loads: FloatArray) -> FloatArray:
        """Return the smallest whole number of instances that serve ``loads [pools]``."""
        max_count = self.table.shape[1] - 1
        needed = loads - ROUNDING
        within = (self.table < needed[:, None]).sum(axis=1)
        beyond = max_count + np.ceil(needed - self.table[:, -1])
        return np.asarray(np.where(within <= max_count, within, beyond), np.float64)
