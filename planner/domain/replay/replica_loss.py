"""Judge whether a fleet survives the loss of replicas.

The losses are those of the setting ``objective.spare``; by default, any one replica (N+1). A fleet
survives a loss if every interactive tier meets its target in a replay without the lost replicas,
which nothing replaces. Of all losses, the one that leaves the least capacity is replayed.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import numpy as np

from planner.domain.replay.smallest_counts import remove_unneeded
from planner.domain.study import Study, Survival
from planner.inputs.scenario.columns import STAGES
from planner.inputs.scenario.settings import SpareSettings
from planner.optimizer.pools import pool_capacity
from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.faults import RegionOutage
from simulation.fleet import Fleet

MAX_REGION_SETS = 1_000  # region sets, see ``region_sets``
MAX_MIXED_LOSSES = (
    3  # up to so many lost replicas, all mixes of a model's pools in a region are tried
)
N_PLUS_1 = SpareSettings(instances=1, by_pool=False)


@dataclass(frozen=True, slots=True, eq=False)
class Loss:
    """Replicas that are lost for the whole window.

    These are ``counts [model, region, GPU column]``, and all replicas of ``region`` if that is set.
    """

    counts: IntArray
    region: int | None = None

    def replicas_after_loss(self, counts: IntArray) -> IntArray:
        """Return the replicas that the loss leaves of ``counts``.

        Both are ``[interval, model, region, GPU column]``.
        """
        remaining: IntArray = np.maximum(counts - self.counts, 0)
        if self.region is not None:
            remaining[:, :, self.region] = 0
        return remaining


def with_spare_replica(study: Study) -> Study:
    """Return the study with plans that include a spare replica (N+1).

    A study that already plans spare replicas is returned unchanged.
    """
    plan = study.settings.plan
    if plan.spare:
        return study
    return replace(study, settings=replace(study.settings, plan=replace(plan, spare=N_PLUS_1)))


def losses_of(study: Study) -> list[Loss]:
    """Return every loss that a fleet of the study has to survive.

    By default, each is the loss of one replica (N+1).
    """
    spare = study.settings.plan.spare or N_PLUS_1
    shape = study.hardware.minimum.shape
    if spare.by_pool or not spare.instances:
        # The only way: every pool loses its spare replicas at the same time.
        lost_counts = [np.full(shape, spare.instances, np.int64)]
    else:
        lost_counts = list(_losses_in_a_region(study, spare.instances))
    _, region_count, _ = shape
    lost_regions = [None, *range(region_count)] if spare.region else [None]
    return [Loss(counts, region) for counts in lost_counts for region in lost_regions]


def _losses_in_a_region(study: Study, replicas: int) -> Iterator[IntArray]:
    """Yield each way in which a model loses that many ``replicas`` in a region, of any pools.

    Each is ``[model, region, GPU column]``. Many lost replicas are all of one pool.
    """
    columns_of: dict[tuple[int, int], list[int]] = {}
    for m, r, g in study.hardware.model_region_gpu:
        columns_of.setdefault((m, r), []).append(g)
    for (m, r), columns in columns_of.items():
        # The GPU column of each lost replica.
        ways: Iterable[tuple[int, ...]] = [(column,) * replicas for column in columns]
        if replicas <= MAX_MIXED_LOSSES:
            ways = combinations_with_replacement(columns, replicas)
        for lost_columns in ways:
            lost = np.zeros(study.hardware.minimum.shape, np.int64)
            for column in lost_columns:
                lost[m, r, column] += 1
            yield lost


def worst_loss(study: Study, counts: IntArray, interval_s: float = 0.0) -> int:
    """Return the index in ``losses_of`` of the loss that hurts a fleet most.

    It leaves the most interactive demand without capacity, and among equals the least capacity.
    ``counts [interval, model, region, GPU column]`` are the fleet's replicas in each interval of
    ``interval_s`` seconds. A static fleet has one interval.
    """
    losses = losses_of(study)
    if len(losses) == 1:
        return 0
    demand_tps = interactive_demand(study)
    if len(counts) > 1:
        bin_of = (np.arange(len(counts)) * interval_s // study.window.bin_s).astype(np.int64)
        demand_tps = demand_tps.take(bin_of, axis=0, mode="clip")
    _, serving_regions = open_region_sets(study)  # [region set, region]

    def severity(index: int) -> tuple[float, float]:
        """Return the demand without capacity after a loss, and minus the capacity that is left."""
        remaining = losses[index].replicas_after_loss(counts)
        # [interval, model, region set]
        capacity = capacity_of(study, remaining) @ serving_regions.T
        return float(np.maximum(demand_tps - capacity, 0.0).sum()), -float(capacity.sum())

    return max(range(len(losses)), key=severity)


def without_replicas(study: Study, fleet: Fleet, source_pools: Sequence[int], loss: Loss) -> Fleet:
    """Return a fleet after a loss.

    ``source_pools`` has the index of the study's pool that each pool of the fleet came from. If the
    policy split a pool by tier, the first part that serves an interactive tier loses the replicas.
    """
    interactive = [tier.name for tier in study.hardware.tiers if not tier.deferrable]
    to_lose = study.counts_by_pool(loss.counts)  # replicas to lose, [pool of the study]
    pools = []
    for source, pool in zip(source_pools, fleet.pools, strict=True):
        lost = 0
        if any(map(pool.takes, interactive)):
            lost = int(to_lose[source])
            to_lose[source] = 0  # other parts of the pool lose none
        pools.append(replace(pool, lost=lost))
    faults = fleet.faults
    if loss.region is not None:
        region = study.hardware.regions[loss.region].name
        faults = (*faults, RegionOutage(region, 0.0, np.inf))
    return replace(fleet, pools=tuple(pools), faults=faults)


def capacity_of(study: Study, counts: IntArray) -> FloatArray:
    """Return the capacity ``[interval, model, region]`` of replicas, in input tokens/s.

    ``counts`` are ``[interval, model, region, GPU column]``. With separate prefill and decode
    pools, the weaker of both counts.
    """
    tps = pool_capacity(study.sizes.theta_tps, study.sizes.pool_tps, counts)
    stages = study.hardware.stages  # [GPU column]
    prefill_tps = tps[..., stages != STAGES["decode"]].sum(axis=-1)
    decode_tps = tps[..., stages != STAGES["prefill"]].sum(axis=-1)
    return np.asarray(np.minimum(prefill_tps, decode_tps))


def capacity_after_loss(study: Study, counts: IntArray) -> FloatArray:
    """Return the input tokens/s that each region set keeps after its worst loss.

    A region set is a set of home regions with the regions that can serve them. The result is
    ``[interval, model, region set]`` and ``counts`` are ``[interval, model, region, GPU column]``.
    If more than ``MAX_MIXED_LOSSES`` replicas are lost in a region, only losses within one pool are
    covered.
    """
    _, regions = open_region_sets(study)
    possible_counts = [counts, *(loss.replicas_after_loss(counts) for loss in losses_of(study))]
    # The product with the mask adds up the regions of each set.
    capacities = [capacity_of(study, possible) @ regions.T for possible in possible_counts]
    return np.asarray(np.min(capacities, axis=0))


def open_region_sets(study: Study) -> tuple[BoolArray, BoolArray]:
    """Return the ``region_sets`` of the study: those with a finite latency have an open route."""
    return region_sets(np.isfinite(study.hardware.latency_s))


def interactive_demand(study: Study) -> FloatArray:
    """Return the interactive demand in input tokens/s, ``[bin, model, region set]``.

    A region set is a set of home regions with the regions that can serve them. Its demand is that
    of its home regions.
    """
    bin_s = study.window.bin_s
    is_deferrable = np.array([tier.deferrable for tier in study.hardware.tiers])
    trace = study.trace.rows(~is_deferrable[study.trace.tier])
    bins = max(1, round(study.window.duration_s / bin_s))
    bin_of = np.minimum(trace.arrival_s // bin_s, bins - 1).astype(np.int64)
    # Add up the tokens of the requests by bin, model and region.
    shape = bins, len(trace.models), len(trace.regions)
    index_of_request = np.ravel_multi_index((bin_of, trace.model, trace.region), shape)
    tokens = np.bincount(index_of_request, trace.input_tokens, minlength=int(np.prod(shape)))
    homes, _ = open_region_sets(study)
    return np.asarray(tokens.reshape(shape) @ homes.T * study.cells / bin_s)


def survival_of(study: Study, attainment: Mapping[str, float | None]) -> Survival | None:
    """Return how well interactive tiers are served after a loss of replicas.

    ``attainment`` is that of each tier in a replay without the lost replicas. None if the window
    has no interactive requests.
    """
    by_tier: dict[str, float | None] = {}
    margins = []  # (attainment above the target, attainment) of each tier with requests
    for tier in study.hardware.tiers:
        if tier.deferrable:
            continue
        share = attainment.get(tier.name)
        by_tier[tier.name] = share
        if share is not None:
            margins.append((share - tier.attainment, share))
    if not margins:
        return None
    least_margin, share = min(margins)
    return Survival(by_tier, share, max(0.0, -least_margin))


def interactive_targets(study: Study) -> dict[str, float]:
    """Return the SLO target of each tier after a loss; 0 for deferrable tiers, which may wait."""
    return {tier.name: 0.0 if tier.deferrable else tier.attainment for tier in study.hardware.tiers}


def with_spare_capacity(windows: Sequence[Study], counts: IntArray) -> IntArray:
    """Return the static fleet ``counts [pools]`` plus the spare replicas of the scenario.

    The fleet then has capacity for the demand in every bin of the ``windows``, after any possible
    loss. Replicas are added where they gain most capacity for their price, within the GPUs and the
    maximum counts. If the scenario asks for no spare, the counts do not change.
    """
    study = windows[0]
    spare = study.settings.plan.spare
    if not spare:
        return counts
    # The largest demand of any bin, [model, region set].
    needed_tps = np.max([interactive_demand(window).max(axis=0) for window in windows], axis=0)

    def missing_tps(fleets: IntArray) -> FloatArray:
        """Return the input tokens/s that each of ``fleets [t, pools]`` lacks after a loss."""
        left_tps = capacity_after_loss(study, by_place(study, fleets))
        return np.asarray(np.maximum(needed_tps - left_tps, 0.0).sum(axis=(1, 2)))

    usd = study.replica_usd  # [pools]
    additions = _additions(study, spare.instances)
    enlarged = counts.copy()
    while True:  # until nothing is missing, or nothing more fits
        (missing,) = missing_tps(enlarged[None]).tolist()
        if missing <= 0:
            break
        candidates = [enlarged + added for added in additions if fits_gpus(study, enlarged + added)]
        if not candidates:
            return enlarged
        paid_usd = np.array([(candidate - enlarged) @ usd for candidate in candidates])
        gained_tps = missing - missing_tps(np.array(candidates))
        most_for_price = int(np.argmax(gained_tps / np.maximum(paid_usd, 1e-9)))
        enlarged = candidates[most_for_price]

    def is_enough(fleet: IntArray) -> bool:
        """Return whether a fleet has the needed capacity after any loss."""
        return not missing_tps(fleet[None]).any()

    return remove_unneeded(is_enough, enlarged, counts, -usd)


def _additions(study: Study, may_be_lost: int) -> list[IntArray]:
    """Return what may be added to a fleet, each as replicas ``[pools]``.

    That is a replica of one pool, or of all pools of a model in a region: prefill alone may gain
    nothing without decode. A new pool gains nothing until it has more replicas than ``may_be_lost``
    at once.
    """
    places = [(m, r) for m, r, _ in study.hardware.model_region_gpu]  # of each pool
    one_replica = list(np.eye(len(places), dtype=np.int64))  # of each pool alone
    for place in dict.fromkeys(places):
        one_replica.append(np.array([other == place for other in places], np.int64))
    return [times * added for added in one_replica for times in (1, may_be_lost + 1)]


def by_place(study: Study, pools: IntArray) -> IntArray:
    """Return counts per pool by model, region and GPU column.

    ``pools`` are ``[interval, pools]``, the result ``[interval, model, region, GPU column]``.
    """
    counts = np.zeros((len(pools), *study.hardware.minimum.shape), np.int64)
    for p, (m, r, g) in enumerate(study.hardware.model_region_gpu):
        counts[:, m, r, g] = pools[:, p]
    return counts


def gpus_used(study: Study, counts: IntArray) -> IntArray:
    """Return the GPUs of the replicas ``counts [pools]``, ``[region, GPU type]``."""
    hardware = study.hardware
    used = np.zeros_like(hardware.capacity_gpus)
    for count, (m, r, g) in zip(counts, hardware.model_region_gpu, strict=True):
        used[r, hardware.types[g]] += count * hardware.profiles[m, g].tp
    return used


def fits_gpus(study: Study, counts: IntArray) -> bool:
    """Return whether every pool is within its maximum and every region has enough GPUs."""
    most = np.array([pool.maximum for pool in study.fleet(counts).pools])
    enough_gpus = (gpus_used(study, counts) <= study.hardware.capacity_gpus).all()
    return bool((counts <= most).all() and enough_gpus)


def region_sets(open_ways: BoolArray) -> tuple[BoolArray, BoolArray]:
    """Return sets of home regions, and the regions that can serve each set.

    Both are masks ``[region set, region]``. All demand can be served if and only if no set's demand
    exceeds the joint capacity of the regions that serve it (Hall's theorem). ``open_ways[home,
    region]`` says which routes are open; a region always serves itself.

    If every route is open there is one set, of all regions. Sets that share no region are not
    combined. If there were more than MAX_REGION_SETS sets, each region is a set of its own and has
    to serve its own demand, which is stricter.
    """
    serving_sets = _joined_sets({frozenset(np.flatnonzero(row).tolist()) for row in open_ways})
    if len(serving_sets) > MAX_REGION_SETS:
        alone = np.eye(len(open_ways), dtype=np.bool_)
        return alone, alone
    # In the order of the binary number in which the digits of the set's regions are 1.
    in_order = sorted(serving_sets, key=lambda regions: sum(1 << region for region in regions))
    serving = np.zeros((len(in_order), len(open_ways)), np.bool_)
    for row, regions in enumerate(in_order):
        serving[row, list(regions)] = True
    # A home belongs to a set if none of its routes ends outside of it.
    leaves_set = np.any(open_ways[None] & ~serving[:, None], axis=2)  # [region set, home]
    return np.asarray(~leaves_set), serving


def _joined_sets(regions_of_homes: set[frozenset[int]]) -> set[frozenset[int]]:
    """Return the sets of regions, and all unions of sets that have a region in common.

    The search ends once there are more than MAX_REGION_SETS.
    """
    joined_sets = set(regions_of_homes)
    to_join = list(regions_of_homes)
    while to_join and len(joined_sets) <= MAX_REGION_SETS:
        regions = to_join.pop()
        for other in regions_of_homes:
            union = regions | other
            has_common_region = bool(regions & other)
            if has_common_region and union not in joined_sets:
                joined_sets.add(union)
                to_join.append(union)
    return joined_sets
