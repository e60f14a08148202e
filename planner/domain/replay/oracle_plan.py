"""Search the cheapest schedule of a window that meets every tier, knowing its demand (oracle).

A plan on a perfect forecast covers the busiest bin of each period at the target of the tier. The
tier counts over the whole window, so smaller plans meet it too. Replays find them: first by one
factor on all demand, then by removing single replicas of single periods. Counts per bin and a
constant fleet are tried in the same way, so that neither short periods nor a static fleet is
cheaper.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.planning.inputs import Load
from planner.domain.planning.period_solver import Periods, plan_with_targets, solve_periods
from planner.domain.planning.planning import counts_over_time
from planner.domain.progress import Progress, silent
from planner.domain.replay.plan_execution import by_clock
from planner.domain.study import Study
from planner.domain.traffic.window import HOUR_S, Window
from planner.errors import Infeasible
from planner.optimizer.problem import PlanningProblem, ScalingPlan
from planner.policies.context import BuiltPolicy, PolicyContext
from simulation.arrays import FloatArray, IntArray
from simulation.policies.parts.schedule import FixedSchedule, Schedule
from simulation.policies.schedule_follower import ScheduleFollower
from simulation.sizing.pool import fewest_instances

FACTORS = tuple(np.geomspace(0.4, 0.97, 24).tolist())  # on the demand
LARGER = tuple(np.geomspace(1.05, 2.0, 8).tolist())  # if all of the demand misses a tier
REPLAYS = 16  # most replays of a search
STEP = 4  # distance in FACTORS between tries, near a factor that held for other candidates
LITTLE = 0.005  # share of the cost: a round that saves less is the last

Judge = Callable[[BuiltPolicy], float | None]  # replayed cost in dollars; None: a tier is missed


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A schedule to test: replica counts ``[p, l, r, g]`` in the periods of ``window``.

    ``plan`` is the program's plan that they come from; None: counts by bin or constant ones.
    """

    counts: IntArray
    window: Window
    plan: ScalingPlan | None = None


@dataclass(eq=False)
class Oracle:
    """A search for the cheapest schedule that meets every tier, with known demand.

    ``load`` is the demand of the window. ``judge`` replays a policy and returns its cost in
    dollars, or None if a tier misses its target.
    """

    study: Study
    load: Load
    context: PolicyContext
    key: str
    judge: Judge
    progress: Progress
    replays: int = 0
    _best: tuple[Candidate, float] | None = None  # with its cost in dollars
    _near: int = -1  # index of the smallest factor that held in the last search; -1: none

    def smallest(self) -> BuiltPolicy | None:
        """Return a policy with the cheapest schedule found; None if none meets every tier.

        Counts per bin and constant counts are tried too, but only without spare replicas, unserved
        demand or lending.
        """
        self._near = self._enough_by_flow()
        self._search_factors((*FACTORS, 1.0), self._plan_at)
        if self._best is None:
            self._near = -1
            self._search_factors(LARGER, self._plan_at)
        if self._best is None:
            return None
        plan = self._best[0].plan
        assert plan is not None
        settings = self.study.settings.plan
        # The other kinds of schedules have no spare replicas, unserved demand or lending.
        if plan.unserved_tps is None and plan.lent is None and not settings.spare:
            if self._has_one_pool_per_region():
                self._search_factors((*FACTORS, 1.0), self._plan_by_bin)
            self._search_factors((*FACTORS, 1.0), self._constant_plan)
            self._trim()
        return self.build(self._best[0])

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
            schedule = FixedSchedule("plan", times, study.pools(counts))
            start = schedule.reset(study.fleet(study.pools(study.today)))  # its first counts
        follower = ScheduleFollower(schedule=schedule, name=self.key)
        whole_plan = None if plan is None else lambda: plan
        # The search takes 0.9 of the progress, the replay the last tenth.
        return replace(self.context.starting_from(follower, start), plan=whole_plan, work_done=0.9)

    def _enough_by_flow(self) -> int:
        """Return the index of the smallest of FACTORS that meets every tier, if demand were a flow.

        Demand above the capacity of the replicas planned for the peak of its period is late. This
        only tells where a search begins.
        """
        hardware, plan = self.study.hardware, self.study.settings.plan
        demand = self.load.tps.sum(axis=2)  # [p, l, w]
        allowed = (1 - max(tier.attainment for tier in hardware.tiers)) * demand.sum()
        curves, minimum = self.study.sizes.pool_tps.max(axis=1), hardware.minimum.sum(axis=(1, 2))
        for i, factor in enumerate(FACTORS):
            late = 0.0
            for m, curve in enumerate(curves):
                if curve[-1] <= 0:
                    continue
                for bins in demand[:, m]:
                    planned = fewest_instances(curve, factor * float(bins.max()))
                    count = max(planned + plan.spare.instances, int(minimum[m]))
                    carried = curve[min(count, len(curve)) - 1] * max(1.0, count / len(curve))
                    late += float(np.maximum(bins - carried, 0.0).sum())
            if late <= allowed:
                return i
        return len(FACTORS) - 1

    def _search_factors(
        self, factors: Sequence[float], candidate_at: Callable[[float], Candidate | None]
    ) -> None:
        """Bisect ``factors`` for the smallest whose candidate meets every tier.

        ``candidate_at`` makes a candidate for a factor on the demand. The cheapest that meets every
        tier is kept. Candidates that cost more than the best so far are not replayed.
        """
        low, high = 0, len(factors)
        # All kinds of candidates hold at similar factors: begin near the last one that held.
        middle, step = (high // 2, high) if self._near < 0 else (min(self._near, high - 1), STEP)
        while low < high and self.replays < REPLAYS:
            candidate = candidate_at(factors[middle])
            if candidate is not None and (
                self._costs_at_least_best(candidate) or self._try(candidate)
            ):
                high, following = middle, middle - step
            else:
                low, following = middle + 1, middle + step
            middle = following if low <= following < high else (low + high) // 2
        self._near = low

    def _try(self, candidate: Candidate | None) -> bool:
        """Replay a candidate, and keep it if it is the cheapest so far.

        Return whether it meets every tier.
        """
        if candidate is None:
            return False
        self.replays += 1
        self.progress(min(0.9, self.replays / REPLAYS), "Searching the cheapest schedule")
        usd = self.judge(self.build(candidate))
        if usd is None:
            return False
        if self._best is None or usd < self._best[1]:
            self._best = candidate, usd
        return True

    def _costs_at_least_best(self, candidate: Candidate) -> bool:
        """Return whether the candidate costs no less than the best, even if starts are free."""
        hours = candidate.window.period_s / HOUR_S
        usd = float((candidate.counts * self._usd_per_hour).sum()) * hours
        return self._best is not None and usd >= self._best[1]

    @property
    def _usd_per_hour(self) -> FloatArray:
        """Return the lowest price of a replica in a day, in dollars per hour ``[l, r, g]``."""
        hardware = self.study.hardware
        gpus = np.zeros((len(hardware.models), len(hardware.gpus)))
        for place, profile in hardware.profiles.items():
            gpus[place] = profile.tp
        return np.asarray(gpus[:, None, :] * hardware.usd_by_hour.min(axis=0)[None])

    def _plan_at(self, factor: float) -> Candidate | None:
        """Return the optimal plan for ``factor`` times the demand; None if none is feasible."""
        periods = Periods.of(self.study.plan_input, self.load.times(factor))
        try:
            plan = solve_periods(periods, silent)
        except Infeasible:
            return None
        return Candidate(plan.target, self.study.window, plan)

    def _plan_by_bin(self, factor: float) -> Candidate:
        """Return the fewest replicas of each pool for ``factor`` times the demand of each bin."""
        study, window = self.study, self.study.window
        tps = np.moveaxis(self.load.tps, 3, 1) * factor  # [p, w, l, r]
        tps = tps.reshape(-1, *tps.shape[2:])
        counts = np.zeros((len(tps), *study.hardware.minimum.shape), np.int64)
        for m, r, g in study.hardware.pool_index:
            curve = study.sizes.pool_tps[m, g]
            if curve[0] > 0:
                need = [
                    fewest_instances(curve, load) if load > 0 else 0
                    for load in tps[:, m, r].tolist()
                ]
                minimum, maximum = study.hardware.minimum[m, r, g], study.hardware.maximum[m, r, g]
                counts[:, m, r, g] = np.clip(need, minimum, max(minimum, maximum))
        return Candidate(counts, replace(window, period_s=window.bin_s))

    def _constant_plan(self, factor: float) -> Candidate | None:
        """Return the largest counts of the plan for ``factor`` times the demand, kept constant.

        None if there is no such plan.
        """
        planned = self._plan_at(factor)
        if planned is None:
            return None
        largest = np.broadcast_to(planned.counts.max(axis=0), planned.counts.shape)
        return Candidate(largest.copy(), planned.window)

    def _has_one_pool_per_region(self) -> bool:
        """Return whether each model has one pool per region and stage.

        The demand of a bin then determines the replica counts.
        """
        hardware, theta = self.study.hardware, self.study.sizes.theta_tps
        serving = [(m, r, hardware.stages[g]) for m, r, g in hardware.pool_index if theta[m, g] > 0]
        mixed = {(m, r) for m, r, stage in serving if stage == 0}
        split = {(m, r) for m, r, stage in serving if stage != 0}
        return len(set(serving)) == len(serving) and not mixed & split

    def _trim(self) -> None:
        """Remove single replicas of single periods while every tier is met and the cost falls.

        Each round removes as many as possible at once, first those that leave the lowest
        utilization.
        """
        while self.replays < REPLAYS:
            assert self._best is not None
            base, before = self._best
            order = _by_utilization(*self._demand(base), base.counts)
            low, high, step = 0, len(order), max(1, len(order) // 4)
            while low < high and self.replays < REPLAYS:
                tried = min(high, low + step)
                if (
                    self._try(self._with_one_less(base, order[:tried]))
                    and self._best[0] is not base
                ):
                    low = tried
                else:
                    high = tried - 1
                step = max(1, (high - low + 1) // 2)
            if self._best[1] > before * (1 - LITTLE):
                break

    def _with_one_less(self, base: Candidate, rows: IntArray) -> Candidate:
        """Return the candidate less a replica at each place ``rows [k, 4]`` (p, l, r, g)."""
        fewer = base.counts.copy()
        fewer[tuple(rows.T)] -= 1
        if base.plan is None:
            return replace(base, counts=fewer)
        periods = Periods.of(self.study.plan_input, self.load)
        return replace(base, counts=fewer, plan=plan_with_targets(periods, base.plan, fewer))

    def _demand(self, base: Candidate) -> tuple[PlanningProblem, FloatArray]:
        """Return the planning problem of the first period, and each model's peak demand per period.

        The peaks ``[p, l]`` sum over regions, in input tokens/s. The periods are the candidate's,
        which may be bins.
        """
        peaks = self.load.tps.sum(axis=2)  # [p, l, w]
        if base.window.period_s == self.study.window.period_s:
            joint = peaks.max(axis=2)
        else:
            joint = np.moveaxis(peaks, 2, 1).reshape(-1, peaks.shape[1])
        return Periods.of(self.study.plan_input, self.load).problems[0], joint


def _by_utilization(problem: PlanningProblem, joint: FloatArray, counts: IntArray) -> IntArray:
    """Return the places (p, l, r, g) that can lose a replica, by rising utilization, ``[k, 4]``.

    Utilization is that after the loss: the model's peak demand ``joint`` over the capacity of all
    its pools of that stage. Places at their minimum are left out.
    """
    capacity, after_loss = (_capacity_of(problem, np.maximum(n, 0)) for n in (counts, counts - 1))
    utilization = np.zeros(counts.shape)  # after the loss, of the stage that it hurts most
    stages = np.zeros(counts.shape[3], np.int64) if problem.stages is None else problem.stages
    for stage in (1, 2):  # prefill, decode
        serves = stages != 3 - stage  # columns of both stages, or of this one
        of_model = capacity[..., serves].sum(axis=(2, 3))
        left = of_model[:, :, None, None] - (capacity - after_loss)
        share = joint[:, :, None, None] / np.maximum(left, 1e-9)
        utilization = np.maximum(utilization, np.where(serves, share, 0.0))
    utilization[counts <= np.maximum(problem.minimum, 0)] = np.inf
    order = np.argsort(utilization, axis=None, kind="stable")
    order = order[np.isfinite(utilization.ravel()[order])]
    return np.stack(np.unravel_index(order, counts.shape), axis=1)


def _capacity_of(problem: PlanningProblem, counts: IntArray) -> FloatArray:
    """Return the capacity of pools of the sizes ``counts [p, l, r, g]``, in input tokens/s."""
    curve = problem.pool_tps  # [l, g, N], the last axis by the number of replicas
    assert curve is not None
    curve_length = curve.shape[2]
    m, _, g = np.indices(counts.shape[1:])
    capacity = curve[m, g, np.clip(counts, 1, curve_length) - 1]
    beyond_curve = np.maximum(counts / curve_length, 1.0)  # larger pools grow in proportion
    return np.where(counts > 0, capacity * beyond_curve, 0.0)
