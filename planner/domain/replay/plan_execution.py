"""Let a policy follow a plan in a replay: on schedule, or planned again at each decision."""

from collections.abc import Callable

import numpy as np

from planner.domain.planning.inputs import Load
from planner.domain.planning.period_solver import (
    PeriodPlan,
    Periods,
    plan_of,
    shares_of,
    solve_period,
)
from planner.domain.planning.planning import decision_times_s, schedule_of
from planner.domain.study import Study
from planner.optimizer.problem import ScalingPlan
from planner.policies.context import FollowedPlan
from simulation.arrays import FloatArray, IntArray
from simulation.policies.parts.schedule import (
    FixedSchedule,
    RollingSchedule,
    Schedule,
    ScheduleStep,
)

Solved = dict[tuple[int, bytes], PeriodPlan]  # by period and the fleet before it


class RollingPlanner:
    """A planner that plans each period when its decision is due, from the fleet at that time.

    ``known`` is a plan made before. Its periods are reused if the fleet is the same (methods.md
    E8). ``solved`` keeps the solutions by period and fleet, for other replays of the same plan.
    """

    def __init__(
        self, study: Study, periods: Periods, known: ScalingPlan | None, solved: Solved
    ) -> None:
        self._study, self._periods = study, periods
        self._solved = solved
        self._answers: list[PeriodPlan] = []
        if known is not None and known.unserved_tps is None:
            current = known.initial
            for period, window in enumerate(known.windows):
                self._solved[period, _fleet_key(current)] = PeriodPlan(window)
                current = window.target

    def __call__(self, period: int, running: IntArray | None) -> ScheduleStep:
        """Return the replica counts to reach in a period, planned from ``running [pools]``.

        ``running`` are the replicas at the decision. Without it, planning starts from the fleet of
        the period's planning problem.
        """
        current = self._periods.problems[period].current
        if running is not None:
            m, r, g = np.array(self._study.hardware.model_region_gpu).T  # of each pool
            current = np.zeros_like(current)
            current[m, r, g] = running
        plan_of_period = self._plan_period(period, current)
        self._answers = [*self._answers[:period], plan_of_period]
        target = plan_of_period.window.target
        shares = shares_of(self._periods, period, target)
        return ScheduleStep(
            self._study.counts_by_pool(target), shares=_with_pools(self._study, shares)
        )

    def plan(self) -> ScalingPlan:
        """Return the plan as decided during the run, for its report.

        Periods that the run did not reach are planned as if it had gone on.
        """
        answers = list(self._answers)
        for period in range(len(answers), len(self._periods.problems)):
            current = answers[-1].window.target if answers else self._periods.problems[0].current
            answers.append(self._plan_period(period, current))
        return plan_of(self._periods, answers)

    def _plan_period(self, period: int, current: IntArray) -> PeriodPlan:
        """Return the plan of a period, solved once for each fleet that it may start from.

        That fleet is ``current [model, region, GPU column]``.
        """
        key = period, _fleet_key(current)
        if key not in self._solved:
            self._solved[key] = solve_period(self._periods, period, current)
        return self._solved[key]


def as_decided(
    study: Study, periods: Periods, known: ScalingPlan | None, solved: Solved
) -> FollowedPlan:
    """Return a plan to follow that is computed period by period, when each decision is due.

    ``known`` is a plan whose periods need not be solved again. ``solved`` has solutions by period
    and fleet; new ones are added to it.
    """
    window = study.window
    rolling = RollingPlanner(study, periods, known, solved)
    starts_s = window.period_starts_s - window.start_s
    schedule = RollingSchedule(rolling, starts_s, decision_times_s(window))
    return _followed_plan(study, schedule, rolling.plan, periods.load)


def by_clock(study: Study, plan: ScalingPlan, load: Load) -> FollowedPlan:
    """Return a plan to follow on schedule, as computed beforehand.

    ``load`` is the demand that the plan was made for.
    """
    scheduled = schedule_of(plan, study.window)
    schedule = FixedSchedule(
        scheduled.times_s,
        study.counts_by_pool(scheduled.targets),
        None if scheduled.lent is None else study.counts_by_pool(scheduled.lent),
        None if scheduled.shares is None else _with_pools(study, scheduled.shares),
        None if scheduled.release is None else _with_pools(study, scheduled.release, -2),
    )
    return _followed_plan(study, schedule, lambda: plan, load)


def _followed_plan(
    study: Study, schedule: Schedule, plan: Callable[[], ScalingPlan], load: Load
) -> FollowedPlan:
    """Return a plan to follow: its schedule, first fleet, and expected tokens/s by bin and pool.

    ``plan`` returns the plan as decided, and ``load`` is the demand that it is made for.
    """
    # [period, model, region, bin of a period]
    tps_by_period = load.tps if load.expected_tps is None else load.expected_tps
    models_and_regions = tps_by_period.shape[1:3]
    # [bin of the window, model, region]
    tps_by_bin = np.moveaxis(tps_by_period, 3, 1).reshape(-1, *models_and_regions)
    m, r, _ = np.array(study.hardware.model_region_gpu).T
    return FollowedPlan(
        schedule=schedule,
        start=schedule.reset(study.fleet(study.counts_by_pool(study.today))),
        plan=plan,
        expected_tps=tps_by_bin[:, m, r],
        bin_s=study.window.bin_s,
    )


def _with_pools(study: Study, by_model: FloatArray, axis: int = -3) -> FloatArray:
    """Return the array without the models that have no pools.

    ``axis`` is the axis of the study's models. The result has the order of ``Fleet.models``.
    """
    models = list(dict.fromkeys(m for m, _, _ in study.hardware.model_region_gpu))
    return np.take(by_model, models, axis)


def _fleet_key(current: IntArray) -> bytes:
    """Return a dictionary key for the counts ``current [model, region, GPU column]``."""
    return np.ascontiguousarray(current, np.int64).tobytes()
