"""Compute the capacity that remains when replicas are lost.

The losses are those of ``objective.spare``, or else any one replica.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from planner.domain.replay.smallest_counts import trimmed
from planner.domain.study import Study
from planner.inputs.scenario.settings import SpareSettings
from planner.optimizer.pools import pool_capacity
from simulation.arrays import BoolArray, FloatArray, IntArray

MOST_SETS = 1_000
ANY_ONE = SpareSettings(instances=1, by_pool=False)


def capacity_of(study: Study, counts: IntArray) -> FloatArray:
    """Return the capacity ``[t, l, r]`` of ``counts`` ``[t, l, r, g]``, in input tokens/s.

    With separate prefill and decode pools, the weaker of both counts.
    """
    tps = pool_capacity(study.sizes.theta_tps, study.sizes.pool_tps, counts)
    stages = study.hardware.stages
    both = [tps[..., stages != other].sum(axis=-1) for other in (2, 1)]
    return np.asarray(np.minimum(*both))


def capacity_after_loss(study: Study, counts: IntArray) -> FloatArray:
    """Return each region set's input tokens/s after the worst loss, ``[t, l, k]``.

    Sets are those of ``region_sets``: regions that can serve each other over open routes. All
    replicas lost in a region are of one pool, so with several columns not every loss is covered.
    """
    spare = study.settings.plan.spare or ANY_ONE
    _, regions = open_region_sets(study)
    ways = (counts, *_counts_after_losses(study, spare, counts))
    return np.asarray(np.min([capacity_of(study, fewer) @ regions.T for fewer in ways], axis=0))


def open_region_sets(study: Study) -> tuple[BoolArray, BoolArray]:
    """Return the sets of regions over the routes that are open in the study."""
    return region_sets(np.isfinite(study.hardware.latency_s))


def _counts_after_losses(
    study: Study, spare: SpareSettings, counts: IntArray
) -> Iterator[IntArray]:
    """Yield ``counts`` after each possible loss."""
    for fewer in _without_instances(study, spare, counts):
        yield fewer
        for region in range(counts.shape[2]) if spare.region else ():
            lost = fewer.copy()
            lost[:, :, region] = 0
            yield lost


def _without_instances(study: Study, spare: SpareSettings, counts: IntArray) -> Iterator[IntArray]:
    """Yield ``counts`` without the spare instances: of all pools, or of one pool at a time."""
    if spare.by_pool or not spare.instances:
        yield np.maximum(counts - spare.instances, 0)
        return
    for m, r, g in study.hardware.pool_index:
        fewer = counts.copy()
        fewer[:, m, r, g] = np.maximum(fewer[:, m, r, g] - spare.instances, 0)
        yield fewer


def interactive_demand(study: Study) -> FloatArray:
    """Return the latency-sensitive demand ``[bins, l, k]``, in input tokens/s.

    It is given by bin of the window, model and set of home regions.
    """
    trace, bin_s = study.trace, study.window.bin_s
    is_deferrable = np.array([tier.deferrable for tier in study.hardware.tiers])
    is_interactive = ~is_deferrable[trace.tier]
    bins = max(1, round(study.window.duration_s / bin_s))
    bin_of = np.minimum(trace.arrival_s[is_interactive] // bin_s, bins - 1).astype(np.int64)
    shape = bins, len(trace.models), len(trace.regions)
    cell = np.ravel_multi_index(
        (bin_of, trace.model[is_interactive], trace.region[is_interactive]), shape
    )
    tokens = np.bincount(cell, trace.input_tokens[is_interactive], minlength=int(np.prod(shape)))
    homes, _ = open_region_sets(study)
    return np.asarray(tokens.reshape(shape) @ homes.T * study.cells / bin_s)


def survival_gap(study: Study, survives: float | None) -> float:
    """Return how far ``survives`` is below its target; 0 if the scenario asks for no spare.

    The target share of time is the highest attainment target of an interactive tier.
    """
    if not study.settings.plan.spare or survives is None:
        return 0.0
    shares = [tier.attainment for tier in study.hardware.tiers if not tier.deferrable]
    return max(0.0, max(shares, default=0.0) - survives)


def with_spare(windows: Sequence[Study], counts: IntArray, share: float = 1.0) -> IntArray:
    """Return the static fleet ``counts`` ``[pools]`` plus the spare replicas of the scenario.

    The fleet then covers the demand in a ``share`` of the bins of each of the ``windows``, after
    any possible loss. Replicas are added where they gain most capacity for their price, within the
    limits. If the scenario asks for no spare, the counts do not change.
    """
    study = windows[0]
    spare = study.settings.plan.spare
    if not spare:
        return counts
    need = np.max(
        [
            np.quantile(interactive_demand(window), share, axis=0, method="higher")
            for window in windows
        ],
        axis=0,
    )  # [l, k]

    def lacks(fleets: IntArray) -> FloatArray:
        """Return the tokens/s that each fleet lacks after the worst loss."""
        return np.asarray(np.maximum(need - _capacity_left(study, fleets), 0.0).sum(axis=(1, 2)))

    usd = np.array([
        pool.usd_per_gpu_hour * pool.gpus_per_instance for pool in study.fleet(counts).pools
    ])  # fmt: skip
    single = np.eye(len(counts), dtype=np.int64)
    places = [(m, r) for m, r, _ in study.hardware.pool_index]
    by_place = [
        np.array([place_of_pool == place for place_of_pool in places], np.int64)
        for place in dict.fromkeys(places)
    ]
    enlarged = counts.copy()
    while (short := float(lacks(enlarged[None])[0])) > 0:
        # A new pool gains nothing until it has more replicas than may be lost. Prefill alone may
        # gain nothing without decode, so all pools of a place are also tried together.
        tries = [
            enlarged + step * pools
            for pools in (*single, *by_place)
            for step in (1, spare.instances + 1)
            if _fits_gpus(study, enlarged + step * pools)
        ]
        if not tries:
            return enlarged
        paid = np.array([(tried - enlarged) @ usd for tried in tries])
        gains = short - lacks(np.array(tries))
        enlarged = tries[int(np.argmax(gains / np.maximum(paid, 1e-9)))]
    return trimmed(lambda fleet: not lacks(fleet[None]).any(), enlarged, counts, -usd)


def _capacity_left(study: Study, pools: IntArray) -> FloatArray:
    """Return ``capacity_after_loss`` of fleets ``[t, pools]``."""
    counts = np.zeros((len(pools), *study.hardware.minimum.shape), np.int64)
    for p, place in enumerate(study.hardware.pool_index):
        counts[:, *place] = pools[:, p]
    return capacity_after_loss(study, counts)


def _fits_gpus(study: Study, counts: IntArray) -> bool:
    """Return whether every pool is within its maximum and every region has enough GPUs."""
    hardware, pools = study.hardware, study.fleet(counts).pools
    used = np.zeros_like(hardware.capacity_gpus)
    for count, pool, (_, r, g) in zip(counts, pools, hardware.pool_index, strict=True):
        used[r, hardware.types[g]] += count * pool.gpus_per_instance
    most = np.array([pool.maximum for pool in pools])
    return bool((counts <= most).all() and (used <= hardware.capacity_gpus).all())


def region_sets(open_ways: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Return sets of home regions ``[k, r]`` and the regions ``[k, r]`` that can serve each set.

    All demand can be served if and only if no set's demand exceeds the joint capacity of its
    regions (Hall). ``open_ways[home, region]`` says which routes are open; a region always serves
    itself.

    If every route is open there is one set, of all regions. Sets that share no region are not
    combined. Above MOST_SETS sets, each region has to serve its own demand, which is stricter.
    """
    reach = {sum(1 << int(r) for r in np.flatnonzero(row)) for row in open_ways}
    served_in, fresh = set(reach), list(reach)
    while fresh:
        regions = fresh.pop()
        for other in reach:
            if regions & other and regions | other not in served_in:
                served_in.add(regions | other)
                fresh.append(regions | other)
        if len(served_in) > MOST_SETS:
            alone = np.eye(len(open_ways), dtype=np.bool_)
            return alone, alone
    where = np.arange(len(open_ways))
    into = np.array([[regions >> int(r) & 1 for r in where] for regions in sorted(served_in)], bool)
    homes = ~(open_ways[None] & ~into[:, None]).any(axis=2)
    return homes, into
