"""Estimate how changed limits, speeds or cached prompts change the capacity of pools.

The closed forms of simulation.sizing.batch_sizing give the ratios for one replica, and for a pool
so large that no request waits for a free replica. In between, the ratio changes with 1 / n. That
follows simulated pools best (bench/results/sizes.md).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import starmap

import numpy as np

from planner.domain.sizing.curves import strictest_tiers, workload_of
from planner.domain.sizing.sizing import Sizes
from planner.domain.traffic.lengths import Lengths
from planner.inputs.scenario.build import Hardware
from planner.second_process import begin, result_of
from simulation.arrays import FloatArray
from simulation.digest import cached_by_value
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.performance.profile import Profile
from simulation.sizing.batch_queue import PoolShape
from simulation.sizing.batch_sizing import largest_pool_rate
from simulation.sizing.capacity import SENDERS
from simulation.sizing.pd_slo_split import isolated_tier
from simulation.sizing.pool import MAX_INSTANCES
from simulation.sizing.trial import SharedPrompts
from simulation.sizing.workload import Workload

RateCall = tuple[Profile, Workload, Tier, PoolShape, float]  # arguments of ``largest_pool_rate``
CACHED_CAPACITIES = 256  # capacities cached per process
PRECISION = 0.01  # relative tolerance of the rate; the closed forms have a larger error


def closed_rps(
    hardware: Hardware, m: int, g: int, lengths: Lengths, shared: SharedPrompts | None = None
) -> FloatArray:
    """Return the requests/s of a replica of model ``m`` on GPU column ``g``, alone and in a pool.

    The result is (alone, in a very large pool) at the strictest interactive tier; NaN: it cannot
    meet the tier. In a very large pool no request waits, so TTFT limits no rate. An end-to-end
    limit still includes the wait at a single replica, so that rate is too low. If prefixes are
    cached, cached tokens in ``shared`` need no prefill.
    """
    alone_calls, large_calls = _pool_calls(hardware, m, g, lengths, shared)
    try:
        alone_rps = min(starmap(_pool_rps, alone_calls), default=np.nan)
        large_pool_rps = min(starmap(_pool_rps, large_calls), default=np.nan)
    except SimulationError:
        return np.full(2, np.nan)
    return np.array([alone_rps, large_pool_rps])


def _pool_calls(
    hardware: Hardware, m: int, g: int, lengths: Lengths, shared: SharedPrompts | None
) -> tuple[list[RateCall], list[RateCall]]:
    """Return the arguments of ``largest_pool_rate`` by tier: for one replica, and a large pool.

    ``closed_rps`` makes these calls. In a large pool no request waits, so TTFT limits no rate.
    """
    work, pool = workload_of(hardware, m, lengths, shared), pool_shape(hardware, m, g)
    tiers = strictest_tiers(hardware.limits_of(m))

    def rate_call(tier: Tier) -> RateCall:
        """Return the arguments of ``largest_pool_rate`` under ``tier``, for the pool's role."""
        return hardware.profiles[m, g], work, isolated_tier(tier, pool.role), pool, PRECISION

    return list(map(rate_call, tiers)), [rate_call(replace(tier, ttft_s=None)) for tier in tiers]


def closed_factors(before: FloatArray, after: FloatArray) -> FloatArray:
    """Return factors ``[..., N]`` on the capacity of pools of 1, 2, ... N replicas.

    They are the change of capacity from ``before`` to ``after``, both ``[2, ...]`` with the rates
    of ``closed_rps``. A factor is 1 if ``before`` is unknown, and 0 if ``after`` has no rate. If
    the rate of a large pool is unknown, it changes as that of a single replica.
    """
    alone, large_pool = after / before
    alone_before, large_pool_before = before
    large_pool = np.where(np.isnan(large_pool_before), alone, large_pool)
    known = np.isfinite(alone_before)
    alone = np.where(known, np.nan_to_num(alone), 1.0)[..., None]
    large_pool = np.where(known, np.nan_to_num(large_pool), 1.0)[..., None]
    # The larger the pool, the nearer its factor to that of a large pool.
    replicas = np.arange(1, MAX_INSTANCES + 1)
    return np.asarray(large_pool + (alone - large_pool) / replicas, np.float64)


def closed_rates(
    hardware: Hardware, pools: Iterable[tuple[int, int]], lengths: Sequence[Lengths],
    shared: Sequence[SharedPrompts | None],
) -> FloatArray:  # fmt: skip
    """Return the ``closed_rps`` of each (model, GPU column) in ``pools``.

    The result is ``[2, model, GPU column]``, NaN for other pools. ``lengths`` and ``shared``
    (cached prompts; None: not known) are by model.
    """
    rates = np.full((2, len(hardware.models), len(hardware.columns)), np.nan)
    for m, g in pools:
        rates[:, m, g] = closed_rps(hardware, m, g, lengths[m], shared[m] if shared else None)
    return rates


def begin_closed_rates(
    hardware: Hardware, pools: Iterable[tuple[int, int]], lengths: Sequence[Lengths],
    shared: Sequence[SharedPrompts | None],
) -> None:  # fmt: skip
    """Send the calls of a later ``closed_rates`` to the second process; do nothing without one."""
    for m, g in pools:
        for calls in _pool_calls(hardware, m, g, lengths[m], shared[m] if shared else None):
            for call in calls:
                begin(largest_pool_rate, *call)


def size_factors(
    before: Hardware, after: Hardware, sizes: Sizes, lengths: Sequence[Lengths],
    shared: Sequence[SharedPrompts | None],
) -> FloatArray:  # fmt: skip
    """Return the factors ``[model, GPU column, N]`` on ``sizes`` if ``after`` replaces ``before``.

    The last axis has pools of 1 to N instances. Closed forms estimate the factors. ``lengths`` and
    ``shared`` (cached prompts) are by model.
    """
    return closed_factors(
        closed_rates(before, sizes.capacity, lengths, shared),
        closed_rates(after, sizes.capacity, lengths, shared),
    )


@cached_by_value(CACHED_CAPACITIES)
def _pool_rps(
    profile: Profile, work: Workload, tier: Tier, pool: PoolShape, precision: float
) -> float:
    """Return the closed-form capacity of a pool within a tier, in requests/s."""
    return result_of(largest_pool_rate, profile, work, tier, pool, precision)


def pool_shape(hardware: Hardware, m: int, g: int) -> PoolShape:
    """Return the shape of a pool of one replica of model ``m`` on GPU column ``g``."""
    return PoolShape(hardware.columns[g].role, link=hardware.kv_link(m), senders=SENDERS)
