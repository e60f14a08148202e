"""The periods of a window solved one from the other, or all at once, in the scenario's words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.errors import Infeasible
from planner.optimizer import plan_sequence, serve_limited
from planner.optimizer.binding import binding_constraints
from planner.optimizer.figures import fleet_usd, start_usd
from planner.optimizer.horizon import HorizonPlan, HorizonProblem, solve_horizon
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
from planner.scenario.build import Hardware
from planner.scenario.schema import Scenario
from planner.studies.progress import Progress
from planner.studies.traffic.window import Window
from simulation.arrays import FloatArray, IntArray

ALL = "all"  # periods in one program


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """A problem per period, and the tiers its demand is made of."""

    problems: Sequence[PlanningProblem]
    names: tuple[str, ...]  # of the periods, for sentences
    window: Window
    tiers: tuple[str, ...]  # () where they are not told apart
    tier_tps: FloatArray | None  # [k, p, l, r, w]


def plan_apart(
    scenario: Scenario, hardware: Hardware, asked: Asked, progress: Progress
) -> ScalingPlan:
    """Each period from the one before; raises Infeasible with the conflict, unless limited mode
    says whom to serve then."""
    objective, ways = scenario.objective, reroute_of(scenario)
    short: dict[int, FloatArray] = {}  # by period: [k, l]

    def rescue(problem: PlanningProblem, failed: WindowPlan, period: int) -> WindowPlan:
        worth = worth_of(scenario, hardware, asked.tiers)
        tiers = asked.tier_tps
        if (objective.limited or EXACT) == EXACT:
            one = replace(problem, minimum=np.minimum(problem.minimum, problem.maximum))
            plan = solve_horizon(
                HorizonProblem(
                    (one,),
                    asked.window.period_s,
                    names=(asked.names[period],),
                    tiers=asked.tiers,
                    tier_tps=None if tiers is None else tiers[:, period : period + 1],
                    priority=worth,
                    reroute=ways,
                ),
                solver=objective.solver,
                gap=objective.gap,
                time_limit_s=objective.time_limit_s,
            )
            if plan.status == INFEASIBLE:  # a limit that does not give way to unserved demand
                return replace(failed, conflict=plan.conflict)
            short[period] = plan.unserved_tps[0]
            return _as_window(one, failed, plan.target[0], failed.conflict, plan.bound, plan)
        found = serve_limited(problem, worth.max(axis=0), objective.limited or EXACT)
        asked_for = problem.demand_tps[None] if tiers is None else tiers[:, period]
        short[period] = by_tier(
            found.unserved_tps, found.unserved_joint_tps, asked_for, problem.epsilon, worth
        )
        return _as_window(problem, failed, found.target, failed.conflict, 0.0, None)

    def within_ways(
        problem: PlanningProblem, period: int, check: Callable[[], None] | None
    ) -> WindowPlan:
        one = HorizonProblem(
            (problem,), asked.window.period_s, names=(asked.names[period],), reroute=ways
        )
        plan = solve_horizon(
            one,
            solver=objective.solver,
            gap=objective.gap,
            time_limit_s=objective.time_limit_s,
            check=check,
        )
        return _of_horizon(problem, plan, one.hours)

    plan = plan_sequence(
        asked.problems,
        period_start_s=asked.window.period_starts_s,
        period_s=asked.window.period_s,
        solver=objective.solver,
        gap=objective.gap,
        time_limit_s=objective.time_limit_s,
        stable=True,
        rescue=rescue if objective.limited else None,
        solve=None if ways is None else within_ways,
        progress=lambda done, total: progress(
            done / total, f"Planning period {min(done + 1, total)} of {total}"
        ),
    )
    for name, answer in zip(asked.names, plan.windows, strict=True):
        if answer.status == INFEASIBLE:
            raise Infeasible(f"There is no feasible plan for {name}. {answer.conflict}")
    serving = HorizonProblem(tuple(asked.problems), asked.window.period_s, reroute=ways)
    plan = replace(plan, rerouted_tps=rerouted(serving, plan.target))
    return plan if not short else _with_unserved(scenario, plan, asked, short)


def plan_together(
    scenario: Scenario, hardware: Hardware, asked: Asked, progress: Progress
) -> ScalingPlan:
    """All periods in one program; raises Infeasible with the conflict, unless limited mode says
    whom to serve then."""
    objective, given = scenario.objective, together(scenario, hardware, asked)

    def solve(problem: HorizonProblem) -> HorizonPlan:
        return solve_horizon(
            problem,
            solver=objective.solver,
            gap=objective.gap,
            time_limit_s=objective.time_limit_s,
            check=lambda: progress(0.5, "Planning all periods together"),
        )

    plan, why = solve(given), ""
    if plan.status == INFEASIBLE:
        if objective.limited is None:
            raise Infeasible(f"There is no feasible plan. {plan.conflict}")
        why = plan.conflict
        plan = solve(replace(given, priority=worth_of(scenario, hardware, asked.tiers)))
        if plan.status == INFEASIBLE:
            raise Infeasible(
                f"There is no feasible plan, however little is served. {plan.conflict}"
            )
    return _sequence(scenario, given, asked, plan, why)


def together(scenario: Scenario, hardware: Hardware, asked: Asked) -> HorizonProblem:
    """All periods as one problem. Whole periods of a start-up are the lead, what remains of it is
    paid as the source does (price times time)."""
    objective, first, period_s = scenario.objective, asked.problems[0], asked.window.period_s
    limits, lend = objective.limits, objective.lend_share
    whole = int(hardware.startup_s // period_s)
    rest = (hardware.startup_s - whole * period_s) / period_s
    return HorizonProblem(
        tuple(replace(one, start_usd=one.usd_per_hour * rest) for one in asked.problems),
        period_s,
        names=asked.names,
        lead=whole,
        lend_usd=None if lend is None else lend * first.usd_per_hour * ~hardware.spot,
        budget_usd=np.inf if limits.usd is None else limits.usd,
        carbon_kg=np.inf if limits.carbon_kg is None else limits.carbon_kg,
        churn=np.inf if limits.changes is None else limits.changes,
        tiers=asked.tiers,
        tier_tps=asked.tier_tps,
        reroute=reroute_of(scenario),
    )


def reroute_of(scenario: Scenario) -> FloatArray | None:
    """Share of a region's demand (row) that may be served in another, ``[r, r]``; None: any."""
    given = scenario.objective.reroute
    if given is None:
        return None
    names = [region.name for region in scenario.regions]
    return np.array([[given.get(home, {}).get(other, 0.0) for other in names] for home in names])


def worth_of(scenario: Scenario, hardware: Hardware, tiers: tuple[str, ...]) -> FloatArray:
    """Worth of a token of each tier and model, ``[k, l]``; one row where tiers are one."""
    given = scenario.objective.priorities
    models = np.array([given.models.get(model.name, 1.0) for model in hardware.models])
    if not tiers:
        return models[None]
    waiting = [tier.name for tier in hardware.tiers if tier.deferrable]
    least = min((given.tiers.get(name, 1.0) for name in waiting), default=1.0)
    return np.array([given.tiers.get(name, least) * models for name in tiers])


def _as_window(
    problem: PlanningProblem,
    failed: WindowPlan,
    target: IntArray,
    conflict: str,
    bound: float,
    plan: HorizonPlan | None,
) -> WindowPlan:
    """A window that serves what it can, with why it cannot serve all."""
    fleet = fleet_usd(problem, target)
    objective = fleet + start_usd(problem, target)
    proven = min(objective, bound / plan.objective * objective) if plan and plan.objective else 0.0
    return replace(
        failed,
        status=FEASIBLE if plan is None else plan.status,
        target=target,
        objective_usd=objective,
        fleet_usd=fleet,
        bound_usd=proven,
        gap=(objective - proven) / fleet if fleet > 0 else 0.0,
        binding=binding_constraints(problem, target),
        conflict=conflict,
        totals=totals(problem, target),
    )


def _of_horizon(problem: PlanningProblem, plan: HorizonPlan, hours: float) -> WindowPlan:
    """A plan of one period as that of a window, figures by the hour."""
    return WindowPlan(
        status=plan.status,
        target=plan.target[0],
        objective_usd=plan.objective / hours,
        fleet_usd=plan.fleet / hours,
        bound_usd=plan.bound / hours,
        gap=plan.gap,
        solver=plan.solver,
        build_seconds=plan.build_seconds,
        solve_seconds=plan.solve_seconds,
        binding=plan.binding,
        conflict=plan.conflict,
        totals=totals(problem, plan.target[0]),
    )


def _with_unserved(
    scenario: Scenario, plan: ScalingPlan, asked: Asked, short: dict[int, FloatArray]
) -> ScalingPlan:
    shape = (len(plan.windows), max(1, len(asked.tiers)), len(plan.models))
    unserved = np.zeros(shape)
    for period, lacks in short.items():
        unserved[period] = lacks
    return replace(
        plan,
        tiers=asked.tiers or ("all tiers",),
        unserved_tps=unserved,
        policy=scenario.objective.limited or EXACT,
    )


def _sequence(
    scenario: Scenario, given: HorizonProblem, asked: Asked, plan: HorizonPlan, why: str
) -> ScalingPlan:
    """The plan of all periods as windows one after the other; what binds is told once, in the
    first."""
    first = given.first
    hours, windows = given.hours, []
    before = np.concatenate([first.current[None], plan.target[:-1]])
    weights = first.weights
    for period, problem in enumerate(given.windows):
        target, taken = plan.target[period], plan.totals[period]
        fleet = fleet_usd(problem, target)
        objective = (
            weights.usd * taken.usd
            + weights.gpu_hours * taken.gpu_hours
            + weights.kwh * taken.kwh
            + weights.kg * taken.kg
        ) / hours
        share = plan.bound / plan.objective if plan.objective > 0 else 0.0
        bound = min(objective, objective * share)
        windows.append(
            WindowPlan(
                status=plan.status,
                target=target,
                objective_usd=objective,
                fleet_usd=fleet,
                bound_usd=bound,
                gap=(objective - bound) / fleet if fleet > 0 else 0.0,
                solver=plan.solver,
                build_seconds=plan.build_seconds if period == 0 else 0.0,
                solve_seconds=plan.solve_seconds if period == 0 else 0.0,
                binding=plan.binding if period == 0 else (),
                conflict=(why or plan.conflict) if period == 0 else "",
                totals=totals(replace(problem, current=before[period]), target),
            )
        )
    limited = bool(why)
    return ScalingPlan(
        models=first.models,
        regions=first.regions,
        gpus=first.gpus,
        gpus_per_instance=first.gpus_per_instance,
        period_start_s=np.asarray(asked.window.period_starts_s, dtype=np.float64),
        period_s=given.period_s,
        initial=first.current,
        demand_tps=np.stack([one.demand_tps.max(axis=2) for one in given.windows]),
        windows=tuple(windows),
        together=True,
        lent=plan.lent if given.lend_usd is not None else None,
        rerouted_tps=plan.rerouted_tps,
        tiers=(asked.tiers or ("all tiers",)) if limited else (),
        unserved_tps=plan.unserved_tps if limited else None,
        policy=(scenario.objective.limited or EXACT) if limited else "",
    )
