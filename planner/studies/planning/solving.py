"""The periods of a window solved one from the other, or all at once, in the scenario's words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import Infeasible
from planner.optimizer import plan_sequence, serve_limited, solve_window
from planner.optimizer.binding import binding_constraints
from planner.optimizer.figures import fleet_usd, start_usd
from planner.optimizer.horizon import HorizonPlan, HorizonProblem, solve_horizon
from planner.optimizer.horizon.figures import by_window
from planner.optimizer.horizon.sent import rerouted
from planner.optimizer.limited import EXACT, by_tier
from planner.optimizer.objective import totals
from planner.optimizer.problem import (
    FEASIBLE,
    INFEASIBLE,
    PlanningProblem,
    ScalingPlan,
    WindowPlan,
)
from planner.scenario.settings import ALL
from planner.studies.planning.inputs import Load, PlanInput
from planner.studies.planning.program import problem
from planner.studies.progress import Progress
from planner.studies.traffic.window import words_of
from simulation.arrays import FloatArray, IntArray

ALL_TIERS = ("all tiers",)  # where they are not told apart


@dataclass(frozen=True, slots=True, eq=False)
class Periods:
    """A problem for each period of the window, and the load its demand is made of."""

    given: PlanInput
    load: Load
    problems: tuple[PlanningProblem, ...]  # [p]
    names: tuple[str, ...]  # [p] for sentences

    @classmethod
    def of(cls, given: PlanInput, load: Load) -> Periods:
        window, clock = given.window, given.traffic.clock
        starts = window.period_starts_s.tolist()
        whole = given.settings.periods == ALL  # decided at once, by what is known then
        problems = tuple(
            problem(given if whole else given.of(p), load.tps[p], window.period_s, start)
            for p, start in enumerate(starts)
        )
        return cls(
            given, load, problems, tuple(f"the period from {words_of(t, clock)}" for t in starts)
        )

    @property
    def worth(self) -> FloatArray:
        """Of a token of each tier and model, ``[k, l]``."""
        tiers = self.given.hardware.tiers
        waiting = frozenset(tier.name for tier in tiers if tier.deferrable)
        return self.given.settings.worth(self.load.tiers, waiting)

    def alone(self, period: int, window: PlanningProblem) -> HorizonProblem:
        """The period by itself as ``window`` says, within the ways that are open."""
        tiers = self.load.tier_tps
        return HorizonProblem(
            (window,),
            self.given.window.period_s,
            names=self.names[period : period + 1],
            tiers=self.load.tiers,
            tier_tps=None if tiers is None else tiers[:, period : period + 1],
            reroute=self.given.settings.reroute,
        )

    def together(self) -> HorizonProblem:
        """All periods as one problem. Whole periods of a start-up are the lead, what remains of it
        is paid as the source does (price times time)."""
        hardware, settings = self.given.hardware, self.given.settings
        period_s, lend = self.given.window.period_s, settings.lend_share
        whole = int(hardware.startup_s // period_s)
        rest = (hardware.startup_s - whole * period_s) / period_s
        usd = self.problems[0].usd_per_hour
        return HorizonProblem(
            tuple(replace(one, start_usd=one.usd_per_hour * rest) for one in self.problems),
            period_s,
            names=self.names,
            lead=whole,
            lend_usd=None if lend is None else lend * usd * ~hardware.spot,
            budget_usd=settings.in_all.usd,
            carbon_kg=settings.in_all.carbon_kg,
            churn=settings.in_all.changes,
            tiers=self.load.tiers,
            tier_tps=self.load.tier_tps,
            reroute=settings.reroute,
        )


def solve_periods(periods: Periods, progress: Progress) -> ScalingPlan:
    """Raises Infeasible with the conflict, unless limited mode says whom to serve then."""
    if periods.given.settings.periods == ALL:
        return _together(periods, progress)
    return _apart(periods, progress)


def _solved(
    periods: Periods, asked: HorizonProblem, check: Callable[[], None] | None = None
) -> HorizonPlan:
    settings = periods.given.settings
    return solve_horizon(
        asked,
        solver=settings.solver,
        gap=settings.gap,
        time_limit_s=settings.time_limit_s,
        check=check,
    )


def _apart(periods: Periods, progress: Progress) -> ScalingPlan:
    """Each period from the one before."""
    settings, window = periods.given.settings, periods.given.window
    unserved: dict[int, FloatArray] = {}  # by period: [k, l]

    def solve(asked: PlanningProblem, period: int, check: Callable[[], None] | None) -> WindowPlan:
        if settings.reroute is None:
            answer = solve_window(
                asked,
                solver=settings.solver,
                gap=settings.gap,
                time_limit_s=settings.time_limit_s,
                stable=True,
                check=check,
            )
        else:
            ways = periods.alone(period, asked)
            (answer,) = by_window(ways, _solved(periods, ways, check))
        if answer.status == INFEASIBLE and settings.limited is not None:
            answer, left = _rescued(periods, asked, answer, period)
            if left is not None:
                unserved[period] = left
        return answer

    plan = plan_sequence(
        periods.problems,
        period_start_s=window.period_starts_s,
        period_s=window.period_s,
        solve=solve,
        progress=lambda done, total: progress(
            done / total, f"Planning period {min(done + 1, total)} of {total}"
        ),
    )
    for name, answer in zip(periods.names, plan.windows, strict=True):
        if answer.status == INFEASIBLE:
            raise Infeasible(f"There is no feasible plan for {name}. {answer.conflict}")
    serving = HorizonProblem(periods.problems, window.period_s, reroute=settings.reroute)
    plan = replace(plan, rerouted_tps=rerouted(serving, plan.target))
    if not unserved:
        return plan
    nothing = np.zeros((max(1, len(periods.load.tiers)), len(plan.models)))
    return replace(
        plan,
        tiers=periods.load.tiers or ALL_TIERS,
        unserved_tps=np.stack([unserved.get(p, nothing) for p in range(len(plan.windows))]),
        policy=settings.limited or EXACT,
    )


def _rescued(
    periods: Periods, asked: PlanningProblem, failed: WindowPlan, period: int
) -> tuple[WindowPlan, FloatArray | None]:
    """A window that serves what it can, with why it cannot serve all, and what it leaves,
    ``[k, l]``; None where a limit does not give way to unserved demand."""
    policy, worth = periods.given.settings.limited or EXACT, periods.worth
    if policy == EXACT:
        within = replace(asked, minimum=np.minimum(asked.minimum, asked.maximum))
        one = replace(periods.alone(period, within), priority=worth)
        plan = _solved(periods, one)
        if plan.status == INFEASIBLE:
            return replace(failed, conflict=plan.conflict), None
        (window,) = by_window(one, plan)
        return replace(window, conflict=failed.conflict), plan.unserved_tps[0]
    served = serve_limited(asked, worth.max(axis=0), policy)
    tiers = periods.load.tier_tps
    tier_tps = asked.demand_tps[None] if tiers is None else tiers[:, period]
    left = by_tier(served.unserved_tps, served.unserved_joint_tps, tier_tps, asked.epsilon, worth)
    return _held(asked, failed, served.target), left


def _held(asked: PlanningProblem, failed: WindowPlan, target: IntArray) -> WindowPlan:
    """``target`` without a proof of how good it is."""
    fleet = fleet_usd(asked, target)
    objective = fleet + start_usd(asked, target)
    return replace(
        failed,
        status=FEASIBLE,
        target=target,
        objective_usd=objective,
        fleet_usd=fleet,
        bound_usd=0.0,
        gap=objective / fleet if fleet > 0 else 0.0,
        binding=binding_constraints(asked, target),
        totals=totals(asked, target),
    )


def _together(periods: Periods, progress: Progress) -> ScalingPlan:
    """All periods in one program; what binds is told once, in the first."""
    settings, whole = periods.given.settings, periods.together()

    def check() -> None:
        progress(0.5, "Planning all periods together")

    plan, why = _solved(periods, whole, check), ""
    if plan.status == INFEASIBLE:
        if settings.limited is None:
            raise Infeasible(f"There is no feasible plan. {plan.conflict}")
        why = plan.conflict
        plan = _solved(periods, replace(whole, priority=periods.worth), check)
        if plan.status == INFEASIBLE:
            raise Infeasible(
                f"There is no feasible plan, however little is served. {plan.conflict}"
            )
    first, *others = by_window(whole, plan)
    return ScalingPlan(
        models=whole.first.models,
        regions=whole.first.regions,
        gpus=whole.first.gpus,
        gpus_per_instance=whole.first.gpus_per_instance,
        period_start_s=periods.given.window.period_starts_s,
        period_s=whole.period_s,
        initial=whole.first.current,
        demand_tps=np.stack([one.demand_tps.max(axis=2) for one in whole.windows]),
        windows=(replace(first, conflict=why or plan.conflict), *others),
        together=True,
        lent=plan.lent if whole.lend_usd is not None else None,
        rerouted_tps=plan.rerouted_tps,
        tiers=(periods.load.tiers or ALL_TIERS) if why else (),
        unserved_tps=plan.unserved_tps if why else None,
        policy=(settings.limited or EXACT) if why else "",
    )
