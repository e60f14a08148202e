"""Search static fleets of a study: the smallest that meets every tier."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import numpy as np

from planner.domain.parallel import run_in_parallel
from planner.domain.planning.power_limits import limited_pools
from planner.domain.planning.program import instance_kw
from planner.domain.progress import Progress, part, silent
from planner.domain.replay.replica_loss import (
    fits_gpus,
    gpus_used,
    interactive_targets,
    losses_of,
    with_spare_capacity,
)
from planner.domain.replay.smallest_counts import Meets, fewest, remove_unneeded
from planner.domain.replay.static_replay import (
    FlatWindow,
    KnownResults,
    Requests,
    fleet_of_models,
    model_pool_mask,
)
from planner.domain.study import Study
from planner.domain.traffic.window import HOUR_S
from simulation.arrays import BoolArray, IntArray

# How far attainment targets are lowered if no fleet meets them. Otherwise a fleet would grow to all
# GPUs for a small part of a percentage point.
LOWERED_TARGETS = (0.005, 0.01, 0.02, 0.05, 0.1)
USUAL_REPLAYS = (
    6  # replays that a search of the smallest fleet usually takes; for its progress only
)


def smallest_flat(
    study: Study,
    *others: Study,
    seed: int,
    progress: Progress = silent,
    known: KnownResults | None = None,
    at_once: int = 1,
) -> IntArray:
    """Return the smallest static fleet that meets every tier's target, as replicas ``[pools]``.

    The targets must be met in the windows of ``study`` and of ``others``, which use the same
    hardware. ``known`` keeps results of earlier searches of the same windows. ``at_once`` is the
    number of windows simulated at the same time.

    Models share no replicas, so each is replayed alone. First the counts of each model are searched
    by bisection over their total, in the proportions of the static fleet for the peak. Then single
    replicas are removed from the whole fleet, the most expensive first, until none can go. In this
    step, attainment counts over all models together.

    Attainment need not be monotone in the total, so this is the smallest fleet *found*. A model
    that cannot meet its tiers with all available GPUs gets the fewest replicas that come near them
    (``LOWERED_TARGETS``), or else the last count tried. Spare replicas of the scenario are added at
    the end.
    """
    known = {} if known is None else known
    windows = sorted((study, *others), key=_hardest_first)
    search = FleetSearch(study, windows, seed, known, at_once)
    counts = np.zeros(len(study.hardware.model_region_gpu), np.int64)
    models = study.hardware.models
    for m, model in enumerate(models):
        searching = part(progress, 0.8 * m / len(models), 0.8 * (m + 1) / len(models))
        searching(0.0, f"Searching the smallest static fleet for {model.name}")
        counts[model_pool_mask(study, [m])] = search.fewest_of_model(m, searching)
    counts = search.without_unneeded(counts, part(progress, 0.8, 1.0))
    return with_spare(windows, counts, seed, known) if study.settings.plan.spare else counts


def _hardest_first(window: Study) -> tuple[int, int]:
    """Return a sort key: the highest peak first, among equals the most requests."""
    return -int(window.counts_by_pool(window.peak).sum()), -len(window.trace)


@dataclass(slots=True, eq=False)
class FleetSearch:
    """A search of the smallest static fleet in ``windows``, the hardest first.

    All have the hardware of ``study``. ``known`` and ``requests`` keep results and traces of
    replays. ``at_once`` is the number of windows simulated at the same time.
    """

    study: Study
    windows: Sequence[Study]
    seed: int
    known: KnownResults
    at_once: int
    requests: Requests = field(default_factory=dict)

    def fewest_of_model(self, m: int, progress: Progress) -> IntArray:
        """Return the fewest replicas of model ``m`` that serve it alone, ``[pools of the model]``.

        The targets are lowered in steps if no fleet meets them.
        """
        study = self.study
        of_model = model_pool_mask(study, [m])
        peaks = np.array([w.counts_by_pool(w.peak) for w in self.windows])  # [window, pool]
        base = peaks.max(axis=0)
        pools = fleet_of_models(study.fleet(base), study, [m]).pools
        low = np.array([pool.minimum for pool in pools], np.int64)
        high = np.array([pool.maximum for pool in pools], np.int64)
        high = _max_replicas(study, of_model, base, high)
        before_replay = _replay_counter(progress, USUAL_REPLAYS + len(self.windows))
        for lowered in (0.0, *LOWERED_TARGETS):
            meets = [
                self._slo_test([window], [m], lowered, before_replay) for window in self.windows
            ]
            counts = _fewest_on_all(meets, peaks[:, of_model], low, high, self.at_once)
            if all(test(counts) for test in meets):
                break
        return counts

    def without_unneeded(self, counts: IntArray, progress: Progress) -> IntArray:
        """Return the fleet ``counts [pools]`` less single replicas that no target needs."""
        least = np.array([pool.minimum for pool in self.study.fleet(counts).pools], np.int64)
        models = range(len(self.study.hardware.models))
        meets = self._slo_test(self.windows, models, 0.0, _replay_counter(progress, USUAL_REPLAYS))
        return remove_unneeded(meets, counts, least, -self.study.replica_usd)

    def _slo_test(
        self,
        windows: Sequence[Study],
        models: Sequence[int],
        lowered: float,
        before_replay: Callable[[], None],
    ) -> Meets:
        """Return a test: does a static fleet meet every tier in each of the ``windows``?

        The test takes the counts of the pools of ``models``. Targets are ``lowered`` by a share.
        ``before_replay`` is called before each replay and may raise to cancel.
        """
        goals = {tier.name: tier.attainment - lowered for tier in self.study.hardware.tiers}
        hardest_first = [
            FlatWindow(window, models, goals, self.seed, before_replay, self.known, self.requests)
            for window in windows
        ]

        def meets(counts: IntArray) -> bool:
            """Return whether ``counts`` meet every tier in every window."""
            for window in hardest_first:
                if not window.meets(counts):
                    # Try this window first next time, which saves replays.
                    hardest_first.remove(window)
                    hardest_first.insert(0, window)
                    return False
            return True

        return meets


def costs_more_than(usd: float, windows: Sequence[Study], seed: int, known: KnownResults) -> bool:
    """Return whether every static fleet that meets the SLO in the windows costs over ``usd``.

    ``usd`` is a cost in the first window, in dollars. The largest fleet for that money is tested.
    With several pools the result is False, since many fleets have that cost and another one might
    meet the SLO.
    """
    study = windows[0]
    if len(study.hardware.model_region_gpu) != 1 or not np.isfinite(usd):
        return False
    (pool,) = study.fleet(np.ones(1, np.int64)).pools
    window_usd = pool.lowest_usd * pool.gpus_per_instance * (study.window.duration_s / HOUR_S)
    if window_usd <= 0:
        return False
    count = np.array([int(usd / window_usd)])  # [1 pool]
    goals = {tier.name: tier.attainment for tier in study.hardware.tiers}
    hardest = sorted(windows, key=_hardest_first)
    return not all(meets_goals(window, count, goals, seed, known) for window in hardest)


def with_spare(
    windows: Sequence[Study], counts: IntArray, seed: int, known: KnownResults | None = None
) -> IntArray:
    """Return a static fleet with the spare replicas (N+1) it needs to meet the SLO after a loss.

    ``counts [pools]`` is the fleet without spares. The loss of replicas is replayed in each of the
    ``windows``. Spares for the loss of a region are added by capacity, since they belong in other
    regions. ``known`` keeps results of replays.
    """
    study, known = windows[0], {} if known is None else known
    if study.settings.plan.spare.region:
        return with_spare_capacity(windows, counts)
    for loss in losses_of(study):
        lost = study.counts_by_pool(loss.counts)
        remaining = np.maximum(counts - lost, 0)
        survives = all(
            meets_goals(window, remaining, interactive_targets(window), seed, known)
            for window in windows
        )
        enlarged = np.where(counts > 0, counts + lost, counts)
        if not survives and fits_gpus(study, enlarged):
            counts = enlarged
    return counts


def _replay_counter(progress: Progress, expected: int) -> Callable[[], None]:
    """Return a function to call at each replay; it shows the share of ``expected`` replays."""
    replays = count(1)

    def before_replay() -> None:
        """Report one more replay, which can raise to cancel."""
        done = next(replays)
        progress(min(1.0, done / expected), f"Sizing the static fleet: replay {done}")

    return before_replay


def _fewest_on_all(
    meets: Sequence[Meets], peaks: IntArray, low: IntArray, high: IntArray, at_once: int
) -> IntArray:
    """Return the smallest counts per pool that meet the condition of every window.

    ``meets`` has one condition per window, and ``peaks [windows, pools]`` the replicas for its peak
    demand. The first window must have the highest peak. It is searched alone. The others are only
    checked, and join the search if they fail. ``low`` and ``high`` limit the counts. If no counts
    meet all conditions, return the largest ones tried.
    """
    searched, checked = [0], list(range(1, len(meets)))  # indices of windows

    def meets_searched(counts: IntArray) -> bool:
        """Return whether the counts meet the conditions of all windows in the search."""
        return all(meets[window](counts) for window in searched)

    counts = fewest(meets[0], peaks[0], low, high)
    while True:
        missed = _first_missed(meets, checked, counts, at_once)
        least_total = int(counts.sum()) + 1
        if missed is None or least_total > high.sum():
            return counts
        checked.remove(missed)
        searched.insert(0, missed)
        counts = fewest(meets_searched, counts, low, high, least=least_total)


def _first_missed(
    meets: Sequence[Meets], order: Sequence[int], counts: IntArray, at_once: int
) -> int | None:
    """Return the first window of ``order`` whose condition fails, or None if all hold.

    ``meets`` has one condition per window. ``at_once`` windows are tested at the same time.
    """

    def holds_in_window(window: int, _: Progress) -> bool:
        """Return whether the condition of a window holds."""
        return meets[window](counts)

    for begin in range(0, len(order), at_once):
        batch = order[begin : begin + at_once]
        tests = [partial(holds_in_window, window) for window in batch]
        met = run_in_parallel(tests, silent, at_once=at_once)
        if not all(met):
            return batch[met.index(False)]
    return None


def meets_goals(
    study: Study,
    counts: IntArray,
    goals: Mapping[str, float],
    seed: int,
    known: KnownResults | None = None,
) -> bool:
    """Return whether a static fleet of ``counts [pools]`` meets ``goals`` (attainment by tier).

    ``known`` keeps results of replays for later calls.
    """
    models = range(len(study.hardware.models))
    known = {} if known is None else known
    window = FlatWindow(study, models, goals, seed, before_replay=lambda: None, known=known)
    return window.meets(counts)


def _max_replicas(study: Study, of_model: BoolArray, base: IntArray, high: IntArray) -> IntArray:
    """Return the most replicas that each pool of a model can have, ``[pools of the model]``.

    ``of_model`` is the mask of these pools. Other models keep the replicas ``base [pools]``. Each
    pool alone must fit the GPUs and the power that they leave. ``high`` are the maximum counts.
    """
    hardware = study.hardware
    others = np.where(of_model, 0, base)
    free_gpus = hardware.capacity_gpus - gpus_used(study, others)  # [region, GPU type]
    most = high.copy()  # first by GPUs, then also by power
    for i, p in enumerate(np.flatnonzero(of_model)):
        m, r, g = hardware.model_region_gpu[p]
        fitting = int(free_gpus[r, hardware.types[g]]) // hardware.profiles[m, g].tp
        most[i] = max(0, min(int(high[i]), fitting))
    for limited, limit_w, watts in limited_pools(hardware, instance_kw(study.plan_input)):
        is_limited = np.isin(np.arange(len(base)), limited)  # [pools]
        free_w = limit_w - int((others * watts)[is_limited].sum())
        within_power = max(0, free_w) // np.maximum(1, watts[of_model])
        most = np.where(is_limited[of_model], np.minimum(most, within_power), most)
    return most
