"""Estimate how changed limits, speeds or cached prompts change the capacity of pools.

The closed forms of simulation.sizing.batch_sizing give the ratios for one instance, and for a pool
so large that no request waits for a free instance. In between, the ratio changes with 1 / n. That
follows simulated pools best (bench/results/sizes.md).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

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

KEPT = 256  # capacities cached per process
PRECISION = 0.01  # relative tolerance of the rate; the closed forms have a larger error


def closed_rps(
    hardware: Hardware, m: int, g: int, lengths: Lengths, shared: SharedPrompts | None = None
) -> FloatArray:
    """Return the requests/s of an instance at its strictest interactive tier, ``[2]``.

    The first value is that of one instance alone. The second is that of each instance of a very
    large pool, where nothing waits, so that TTFT limits no rate. A limit of E2E still includes the
    wait for one instance there, so its second rate is too low. NaN: no rate. If serving caches
    prefixes, cached tokens of ``shared`` need no prefill. Blocks are ignored.
    """
    try:
        return np.array(
            [
                min((_pool_rps(*call) for call in calls), default=np.nan)
                for calls in _pool_calls(hardware, m, g, lengths, shared)
            ]
        )
    except SimulationError:
        return np.full(2, np.nan)


def _pool_calls(
    hardware: Hardware, m: int, g: int, lengths: Lengths, shared: SharedPrompts | None
) -> list[list[tuple[Profile, Workload, Tier, PoolShape, float]]]:
    """Return the arguments of ``largest_pool_rate`` by tier: for one instance, for a large pool.

    ``m`` and ``g`` are the indices of model and column. ``shared`` has cached prompts, if known.
    """
    work, pool = workload_of(hardware, m, lengths, shared), sized_pool(hardware, m, g)
    tiers = strictest_tiers(hardware.limits_of(m))
    return [
        [
            (hardware.profiles[m, g], work, isolated_tier(tier, pool.role), pool, PRECISION)
            for tier in limits
        ]
        for limits in (tiers, [replace(tier, ttft_s=None) for tier in tiers])
    ]


def closed_factors(before: FloatArray, after: FloatArray) -> FloatArray:
    """Return the factors on the capacity of pools of 1, 2, ... N instances, ``[..., N]``.

    They are the change from ``before`` to ``after``, both ``closed_rps``, ``[2, ...]``. The factors
    are 1 where ``before`` is unknown, and 0 where no rate is left. An unknown large pool changes as
    one instance does.
    """
    alone, large = after / before  # ratios of one instance, and of a large pool
    large = np.where(np.isnan(before[1]), alone, large)
    known = np.isfinite(before[0])
    alone, large = (np.where(known, np.nan_to_num(ratio), 1.0) for ratio in (alone, large))
    n = np.arange(1, MAX_INSTANCES + 1)
    return np.asarray(large[..., None] + (alone - large)[..., None] / n, np.float64)


def closed_rates(
    hardware: Hardware, pools: Iterable[tuple[int, int]], lengths: Sequence[Lengths],
    shared: Sequence[SharedPrompts | None],
) -> FloatArray:  # fmt: skip
    """Return ``closed_rps`` of ``pools`` in ``[2, model, GPU column]``; NaN elsewhere.

    The first row is of one instance, the second of an instance in a large pool. ``shared`` has the
    cached prompts of each model; None: not known.
    """
    rates = np.full((2, len(hardware.models), len(hardware.columns)), np.nan)
    for m, g in pools:
        rates[:, m, g] = closed_rps(hardware, m, g, lengths[m], shared[m] if shared else None)
    return rates


def begin_closed_rates(
    hardware: Hardware, pools: Iterable[tuple[int, int]], lengths: Sequence[Lengths],
    shared: Sequence[SharedPrompts | None],
) -> None:  # fmt: skip
    """Begin the closed forms of ``closed_rates`` in a second process, if there is one."""
    for m, g in pools:
        for calls in _pool_calls(hardware, m, g, lengths[m], shared[m] if shared else None):
            for call in calls:
                begin(largest_pool_rate, *call)


def size_factors(
    before: Hardware, after: Hardware, sizes: Sizes, lengths: Sequence[Lengths],
    shared: Sequence[SharedPrompts | None],
) -> FloatArray:  # fmt: skip
    """Return factors ``[model, GPU column, N]`` on ``sizes`` if ``after`` replaces ``before``.

    They are ratios of capacities by closed forms. ``shared`` has the cached prompts of each model,
    if known.
    """
    rates = (closed_rates(each, sizes.capacity, lengths, shared) for each in (before, after))
    return closed_factors(*rates)


@cached_by_value(KEPT)
def _pool_rps(
    profile: Profile, work: Workload, tier: Tier, pool: PoolShape, precision: float
) -> float:
    """Return the closed-form capacity of a pool within a tier, in requests/s."""
    return result_of(largest_pool_rate, profile, work, tier, pool, precision)


def sized_pool(hardware: Hardware, m: int, g: int) -> PoolShape:
    """Return the pool of one replica of model ``m`` on column ``g``, as simulation sizes it."""
    return PoolShape(hardware.columns[g].role, link=hardware.kv_link(m), senders=SENDERS)
