"""Map the replicas that a plan requested to the pools of a scenario."""

from collections.abc import Sequence

import numpy as np

from planner.domain.replicas import replica_of
from planner.domain.retrospective.figures import HeldPool
from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware
from simulation.arrays import FloatArray, IntArray


def requested_counts(
    hardware: Hardware, pools: Sequence[HeldPool], start_s: float, end_s: float
) -> tuple[FloatArray, IntArray]:
    """Return when the requested replicas change, and the counts from then on, ``[steps, pools]``.

    Times are seconds from ``start_s``. Raises ScenarioError if the scenario lacks a pool of the
    plan.
    """
    edges = np.unique(np.concatenate([pool.times_s for pool in pools] or [np.zeros(0)]))
    inside = edges[(edges > start_s) & (edges < end_s)]
    times = np.concatenate([[start_s], inside])
    counts = np.zeros((len(times), len(hardware.pool_index)), np.int64)
    for pool in pools:
        # Before its first step a pool has the count of that step.
        step = np.clip(np.searchsorted(pool.times_s, times, side="right") - 1, 0, None)
        counts[:, _pool_index_of(hardware, pool)] += pool.replicas[step]
    return times - start_s, counts


def _pool_index_of(hardware: Hardware, pool: HeldPool) -> int:
    """Return the index of ``pool`` among the scenario's pools; raise ScenarioError if none."""
    for p, (m, r, g) in enumerate(hardware.pool_index):
        replica = replica_of(hardware, m, g)
        same = (replica.model, hardware.regions[r].name, replica.gpu, replica.role) == (
            pool.model, pool.region, pool.gpu, pool.role
        )  # fmt: skip
        # Plans of older releases do not have these fields; None matches any.
        finer = ("tp", "market", "arrangement")
        if same and all(getattr(pool, n) in (None, getattr(replica, n)) for n in finer):
            return p
    raise ScenarioError(
        f"The plan held {pool.model} on {pool.gpu} in {pool.region}, and the scenario no longer "
        "has this pool. Its result cannot be replayed."
    )
