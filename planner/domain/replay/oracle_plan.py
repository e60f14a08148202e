"""Search the cheapest schedule of a window that meets every tier, knowing its demand (oracle).

A plan on a perfect forecast covers the busiest bin of each period. But SLO attainment counts over
the whole window, so smaller plans meet the target too. Replays find them: first with plans for one
factor times the demand, then by removing single replicas in single periods. Schedules with a count
per bin and constant ones are tried in the same way, so that neither a policy with shorter periods
nor a static fleet is cheaper than the oracle.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.domain.planning.inputs import Load
from planner.domain.planning.period_solver import Periods, plan_with_targets, solve_periods
from planner.domain.planning.planning import counts_over_time
from planner.domain.progress import Progress, silent
from planner.domain.replay.plan_execution import by_clock
from planner.domain.study import Study
from planner.domain.traffic.window import HOUR_S, Window
from planner.errors import Infeasible
from planner.optimizer.problem import DECODE, PREFILL, PlanningProblem, ScalingPlan
from planner.policies.context import BuiltPolicy, PolicyContext
from simulation.arrays import FloatArray, IntArray
from simulation.policies.parts.schedule import FixedSchedule, Schedule
from simulation.policies.schedule_follower import ScheduleFollower
from simulation.sizing.pool import fewest_instances

FACTORS = tuple(np.geomspace(0.4, 0.97, 24).tolist())  # tried factors on the demand
LARGER_FACTORS = tuple(
    np.geomspace(1.05, 2.0, 8).tolist()
)  # tried if the plan for factor 1 misses a tier
MAX_REPLAYS = 16  # most replays of a search
INDEX_STEP = 4  # distance in FACTORS between tries, near a factor that held for other candidates
MIN_SAVING_SHARE = 0.005  # share of the cost: a round that saves less is the last

Judge = Callable[[BuiltPolicy], float | None]  # replayed cost in dollars; None: a tier is missed


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A schedule to test: replica counts ``[period, model, region, GPU column]`` in a window.

    ``plan`` is the optimizer's plan with these counts. It is None for schedules that are made
    without the optimizer: counts per bin, and constant counts.
    """

    counts: IntArray
    window: Window
    plan: ScalingPlan | None = None


@dataclass(eq=False)
class Oracle:
    """A search for the cheapest schedule that meets every tier, with known demand.

    ``load`` is the demand of the window, and ``key`` names the policy. ``judge`` replays a policy
    and returns its cost in dollars, or None if a tier misses its target. ``replays`` counts the
    replays so far.
    """

    study: Study
    load: Load
    context: PolicyContext
    key: str
    judge: Judge
    progress: Progress
    replays: int = 0
    _best: Candidate | None = None  # the cheapest that meets every tier so far
    _best_usd: float = np.inf  # its cost in the replay
    _last_index: int = -1  # index of the smallest factor that met every tier; -1: none yet
    _plans: dict[float, Candidate | None] = field(default_factory=dict)  # solved so far, by factor

    def smallest(self) -> BuiltPolicy | None:
        """Return a policy with the cheapest schedule found; None if none meets every tier.

        Counts per bin and constant counts are tried too, but only without spare replicas, unserved
        demand or lending.
        """
        self._last_index = self._enough_by_flow()  # where the search of factors begins
        self._search_factors((*FACTORS, 1.0), self._plan_at)
        if self._best is None:
            self._last_index = -1  # begin in the middle
            self._search_factors(LARGER_FACTORS, self._plan_at)
        if self._best is None:
            return None
        plan = self._best.plan
        assert plan is not None
        settings = self.study.settings.plan
        # The other kinds of schedules have no spare replicas, unserved demand or lending.
        if plan.unserved_tps is None and plan.lent is None and not settings.spare:
            if self._has_one_pool_per_region():
                self._search_factors((*FACTORS, 1.0), self._plan_by_bin)
            self._search_factors((*FACTORS, 1.0), self._constant_plan)
            self._trim()
        return self.build(self._best)

    def build(self, candidate: Candidate) -> BuiltPolicy:
        """Return a policy that follows the candidate's counts on schedule."""
        study, plan = self.study, candidate.plan
        schedule: Schedule
        if plan is not None:
            followed = by_clock(study, plan, self.load)
            schedule, start = followed.schedule, followed.start
        else:
            # Nothing is lent or left unserved here, so the counts are the whole schedule.
            times, counts = counts_over_time(candidate.counts, candidate.window)
            schedule = FixedSchedule(times, study.counts_by_pool(counts))
            today = study.fleet(study.counts_by_pool(study.today))
            start = schedule.reset(today)  # its first counts
        follower = ScheduleFollower(schedule=schedule, name=self.key)
        whole_plan = None if plan is None else lambda: plan
        # The search takes 0.9 of the progress, the replay the last tenth.
        return replace(self.context.starting_from(follower, start), plan=whole_plan, work_done=0.9)

    def _enough_by_flow(self) -> int:
        """Return the index in FACTORS from which the search for the smallest factor begins.

        It is the smallest factor that meets every tier in a fluid model without queues: demand is
        late if it exceeds the capacity of the replicas that are planned for its period's peak.
        """
        demand = self.load.tps.sum(axis=2)  # [period, model, bin]
        tiers = self.study.hardware.tiers
        allowed_late = (1 - max(tier.attainment for tier in tiers)) * demand.sum()
        for i, factor in enumerate(FACTORS):
            if self._late_by_flow(factor, demand) <= allowed_late:
                return i
        return len(FACTORS) - 1

    def _late_by_flow(self, factor: float, demand: FloatArray) -> float:
        """Return the late demand of the fluid model, if ``factor`` times the peaks are planned for.

        ``demand [period, model, bin]`` is in input tokens/s; the result is summed over bins.
        """
        spare = self.study.settings.plan.spare.instances
        minimum = self.study.hardware.minimum.sum(axis=(1, 2))
        late = 0.0
        for m, curve in enumerate(self.study.sizes.pool_tps.max(axis=1)):
            if curve[-1] <= 0:
                continue
            for demand_of_bins in demand[:, m]:  # of each period
                planned = fewest_instances(curve, factor * float(demand_of_bins.max()))
                count = max(planned + spare, int(minimum[m]))
                # Pools beyond the end of the curve grow in proportion.
                capacity_tps = curve[min(count, len(curve)) - 1] * max(1.0, count / len(curve))
                late += float(np.maximum(demand_of_bins - capacity_tps, 0.0).sum())
        return late

    def _search_factors(
        self, factors: Sequence[float], candidate_at: Callable[[float], Candidate | None]
    ) -> None:
        """Bisect ``factors`` for the smallest whose candidate meets every tier.

        ``candidate_at`` makes a schedule for a factor on the demand; None if there is none. The
        cheapest schedule that meets every tier is kept. Schedules that cost at least as much as the
        best so far are not replayed, and count as if they met every tier.
        """
        low, high = 0, len(factors)  # the smallest that meets is in [low, high]
        if self._last_index < 0:
            tried, step = high // 2, high
        else:
            # All kinds of schedules meet the tiers at similar factors: begin near the last one.
            tried, step = min(self._last_index, high - 1), INDEX_STEP
        while low < high and self.replays < MAX_REPLAYS:
            candidate = candidate_at(factors[tried])
            if self._costs_at_least_best(candidate) or self._try(candidate):
                high, next_tried = tried, tried - step
            else:
                low, next_tried = tried + 1, tried + step
            tried = next_tried if low <= next_tried < high else (low + high) // 2
        self._last_index = low

    def _try(self, candidate: Candidate | None) -> bool:
        """Replay a candidate, and keep it if it is the cheapest so far.

        Return whether it meets every tier.
        """
        if candidate is None:
            return False
        self.replays += 1
        self.progress(min(0.9, self.replays / MAX_REPLAYS), "Searching the cheapest schedule")
        usd = self.judge(self.build(candidate))
        if usd is None:
            return False
        if self._best is None or usd < self._best_usd:
            self._best, self._best_usd = candidate, usd
        return True

    def _costs_at_least_best(self, candidate: Candidate | None) -> bool:
        """Return whether the candidate costs no less than the best, even if starts are free."""
        if candidate is None or self._best is None:
            return False
        hours = candidate.window.period_s / HOUR_S
        usd = float((candidate.counts * self._usd_per_hour).sum()) * hours
        return usd >= self._best_usd

    @property
    def _usd_per_hour(self) -> FloatArray:
        """Return a replica's price in the cheapest hour of the day, in dollars per hour.

        The axes are ``[model, region, GPU column]``.
        """
        hardware = self.study.hardware
        gpus = np.zeros((len(hardware.models), len(hardware.gpus)))
        for (m, g), profile in hardware.profiles.items():
            gpus[m, g] = profile.tp
        return np.asarray(gpus[:, None, :] * hardware.usd_by_hour.min(axis=0)[None])

    def _plan_at(self, factor: float) -> Candidate | None:
        """Return the optimal plan for ``factor`` times the demand; None if none is feasible."""
        if factor not in self._plans:
            periods = Periods.of(self.study.plan_input, self.load.scaled(factor))
            try:
                plan = solve_periods(periods, silent)
                self._plans[factor] = Candidate(plan.target, self.study.window, plan)
            except Infeasible:
                self._plans[factor] = None
        return self._plans[factor]

    def _plan_by_bin(self, factor: float) -> Candidate:
        """Return a schedule with the fewest replicas for ``factor`` times the demand of each bin.

        Its periods are the bins. Each pool serves all the demand of its model and region.
        """
        hardware, window = self.study.hardware, self.study.window
        by_period = np.moveaxis(self.load.tps, 3, 1) * factor  # [period, bin, model, region]
        tps = by_period.reshape(-1, *by_period.shape[2:])  # [bin, model, region]
        counts = np.zeros((len(tps), *hardware.minimum.shape), np.int64)
        for m, r, g in hardware.model_region_gpu:
            curve = self.study.sizes.pool_tps[m, g]
            if curve[0] > 0:
                loads = tps[:, m, r].tolist()
                need = [fewest_instances(curve, load) if load > 0 else 0 for load in loads]
                minimum, maximum = hardware.minimum[m, r, g], hardware.maximum[m, r, g]
                counts[:, m, r, g] = np.clip(need, minimum, max(minimum, maximum))
        return Candidate(counts, replace(window, period_s=window.bin_s))

    def _constant_plan(self, factor: float) -> Candidate | None:
        """Return the constant schedule with the peak counts of the plan at ``factor``.

        The plan is that for ``factor`` times the demand. None if there is no such plan.
        """
        planned = self._plan_at(factor)
        if planned is None:
            return None
        largest = np.broadcast_to(planned.counts.max(axis=0), planned.counts.shape)
        return Candidate(largest.copy(), planned.window)

    def _has_one_pool_per_region(self) -> bool:
        """Return whether each model has one pool per region and stage (prefill, decode or both).

        The demand of a bin then determines the replica counts.
        """
        hardware, theta_tps = self.study.hardware, self.study.sizes.theta_tps
        stages_of: dict[tuple[int, int], list[int]] = {}  # by model and region
        for m, r, g in hardware.model_region_gpu:
            if theta_tps[m, g] > 0:
                stages_of.setdefault((m, r), []).append(int(hardware.stages[g]))
        prefill_and_decode = sorted((PREFILL, DECODE))
        return all(
            len(stages) == 1 or sorted(stages) == prefill_and_decode
            for stages in stages_of.values()
        )

    def _trim(self) -> None:
        """Remove replicas from single periods of the best schedule, as long as every tier is met.

        Each round tries to remove one replica from many periods and pools at once. Those come first
        whose removal leaves the lowest utilization. The last round is one that saves little.
        """
        while self.replays < MAX_REPLAYS:
            base, usd_before = self._best, self._best_usd
            assert base is not None
            # Find how many of the first removals in ``order`` the tiers bear at once.
            order = _by_utilization(*self._demand(base), base.counts)
            low, high, step = 0, len(order), max(1, len(order) // 4)
            while low < high and self.replays < MAX_REPLAYS:
                tried = min(high, low + step)
                meets = self._try(self._with_one_less(base, order[:tried]))
                if meets and self._best is not base:
                    low = tried
                else:
                    high = tried - 1
                step = max(1, (high - low + 1) // 2)
            if self._best_usd > usd_before * (1 - MIN_SAVING_SHARE):
                break

    def _with_one_less(self, base: Candidate, rows: IntArray) -> Candidate:
        """Return the candidate with one replica less at each of ``rows``.

        Each row of ``rows [removed, 4]`` has the indices of period, model, region and GPU column.
        """
        fewer = base.counts.copy()
        period, m, r, g = rows.T
        fewer[period, m, r, g] -= 1
        if base.plan is None:
            return replace(base, counts=fewer)
        periods = Periods.of(self.study.plan_input, self.load)
        return replace(base, counts=fewer, plan=plan_with_targets(periods, base.plan, fewer))

    def _demand(self, base: Candidate) -> tuple[PlanningProblem, FloatArray]:
        """Return the planning problem of the first period, and each model's peak demand per period.

        The peaks ``[period, model]`` are summed over regions, in input tokens/s. The periods are
        those of the candidate ``base``, which may be bins.
        """
        tps = self.load.tps.sum(axis=2)  # [period, model, bin]
        if base.window.period_s == self.study.window.period_s:
            peaks = tps.max(axis=2)
        else:  # the periods are bins
            peaks = np.moveaxis(tps, 2, 1).reshape(-1, tps.shape[1])
        return Periods.of(self.study.plan_input, self.load).problems[0], peaks


def _by_utilization(problem: PlanningProblem, peaks: FloatArray, counts: IntArray) -> IntArray:
    """Return where a replica can be removed, ordered by the utilization that this leaves.

    Each row of the result ``[rows, 4]`` has the indices of period, model, region and GPU column.
    Utilization is the model's peak demand (``peaks [period, model]``, input tokens/s) divided by
    the capacity of all its pools of a stage, prefill or decode. Pools at their minimum count are
    left out. ``counts [period, model, region, GPU column]`` are the replicas before.
    """
    capacity = _capacity_of(problem, np.maximum(counts, 0))
    lost = capacity - _capacity_of(problem, np.maximum(counts - 1, 0))
    demand = peaks[:, :, None, None]  # axes as in ``counts``
    utilization = np.zeros(counts.shape)  # after the loss, of the stage that it hurts most
    stages = np.zeros(counts.shape[3], np.int64) if problem.stages is None else problem.stages
    # First the columns that prefill, then those that decode. Aggregated ones do both.
    for other_stage in (DECODE, PREFILL):
        is_of_stage = stages != other_stage  # [GPU column]
        capacity_of_model = capacity[..., is_of_stage].sum(axis=(2, 3), keepdims=True)
        after_loss = demand / np.maximum(capacity_of_model - lost, 1e-9)
        utilization = np.maximum(utilization, np.where(is_of_stage, after_loss, 0.0))
    utilization[counts <= np.maximum(problem.minimum, 0)] = np.inf
    order = np.argsort(utilization, axis=None, kind="stable")
    order = order[np.isfinite(utilization.ravel()[order])]
    return np.stack(np.unravel_index(order, counts.shape), axis=1)


def _capacity_of(problem: PlanningProblem, counts: IntArray) -> FloatArray:
    """Return the capacity of pools with ``counts`` replicas, in input tokens/s.

    Both are ``[period, model, region, GPU column]``.
    """
    curve = problem.pool_tps  # [model, GPU column, replicas]
    assert curve is not None
    curve_length = curve.shape[2]
    m, _, g = np.indices(counts.shape[1:])
    capacity = curve[m, g, np.clip(counts, 1, curve_length) - 1]
    beyond_curve = np.maximum(counts / curve_length, 1.0)  # larger pools grow in proportion
    return np.where(counts > 0, capacity * beyond_curve, 0.0)
