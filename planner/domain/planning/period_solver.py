"""Solve the periods of a window one after the other or all at once, and describe conflicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.planning.inputs import Load, PlanInput
from planner.domain.planning.program import instance_kw, problem
from planner.domain.progress import Progress
from planner.domain.sizing.sizing import Sizes
from planner.domain.traffic.groups import DEFERRABLE
from planner.domain.traffic.window import words_of
from planner.errors import Infeasible
from planner.inputs.scenario.settings import ALL
from planner.optimizer import serve_limited, solve_window
from planner.optimizer.binding_constraints import binding_constraints
from planner.optimizer.figures import fleet_usd, start_usd
from planner.optimizer.horizon import HorizonPlan, HorizonProblem, solve_horizon
from planner.optimizer.horizon.cross_region import rerouted_tps, shares_planned
from planner.optimizer.horizon.figures import by_window
from planner.optimizer.limited_capacity import EXACT, unserved_by_tier
from planner.optimizer.objective import totals
from planner.optimizer.problem import (
    FEASIBLE,
    INFEASIBLE,
    MEASURES,
    PlanningProblem,
    ScalingPlan,
    WindowPlan,
)
from simulation.arrays import FloatArray, IntArray, ratio

BY_TIER = "tier"
# Smallest utility of a tier, as a share of the largest: a tier without utility is served if
# capacity is left. If utility is traded against cost, it is not served for its utility.
MIN_UTILITY_SHARE = 1e-3
MIN_TRADED_UTILITY_SHARE = 1e-9
ALL_TIERS = ("all tiers",)  # name of the only tier if tiers are planned together


@dataclass(frozen=True, slots=True, eq=False)
class Periods:
    """The planning problem of each period of a window, and the demand that they serve."""

    inputs: PlanInput
    load: Load
    problems: tuple[PlanningProblem, ...]  # one per period
    names: tuple[str, ...]  # name of each period in sentences

    @classmethod
    def of(cls, inputs: PlanInput, load: Load) -> Periods:
        """Return the problems of all periods for ``load``."""
        # If all periods are decided at once, all of them use the sizes known at that time.
        at_once = inputs.settings.objective.periods == ALL
        kw: dict[Sizes, FloatArray] = {}  # power by sizes, which many periods share
        problems, names = [], []
        for p, start_s in enumerate(inputs.window.period_starts_s.tolist()):
            known_inputs = inputs if at_once else inputs.at_period(p)
            sizes = known_inputs.sizes
            if sizes not in kw:
                kw[sizes] = instance_kw(known_inputs)
            period_s = inputs.window.period_s
            problems.append(problem(known_inputs, load.tps[p], period_s, start_s, kw[sizes]))
            names.append(f"the period from {words_of(start_s, inputs.traffic.clock)}")
        return cls(inputs, load, tuple(problems), tuple(names))

    @property
    def tier_values(self) -> FloatArray:
        """Return the value of serving one token/s of each tier and model, ``[tier, model]``.

        If not all demand can be served, the demand of the least value stays unserved. With the
        setting ``utility_usd``, values are dollars per hour and token/s. Otherwise only their order
        matters.
        """
        settings, tiers = self.inputs.settings, self.inputs.hardware.tiers
        usd = settings.objective.utility_usd
        deferrable = frozenset(tier.name for tier in tiers if tier.deferrable)
        worth: FloatArray = settings.token_worth(self.load.tiers, deferrable)
        has_one_tier = not self.load.tiers  # then utilities matter only if they are dollars
        if not settings.by_utility or (has_one_tier and usd is None):
            return worth
        utility = self._utilities()  # of a request; at least a small share of the largest
        least = MIN_UTILITY_SHARE if usd is None else MIN_TRADED_UTILITY_SHARE
        utility = np.maximum(utility, least * utility.max())
        worth = worth * utility[:, None] / self._request_tokens()
        return worth if usd is None else worth * 3600 * usd

    def _utilities(self) -> FloatArray:
        """Return the utility of a request of each tier of the load, ``[tier]``.

        All deferrable tiers are one tier of the load, with the lowest of their utilities. If the
        load has one tier for all, it has the highest utility of an interactive tier.
        """
        tiers = self.inputs.hardware.tiers
        lowest = min((tier.utility for tier in tiers if tier.deferrable), default=0.0)
        stated = {tier.name: tier.utility for tier in tiers if not tier.deferrable}
        if not self.load.tiers:
            return np.array([max(stated.values(), default=lowest)])
        return np.array([stated.get(name, lowest) for name in self.load.tiers])

    def _request_tokens(self) -> FloatArray:
        """Return the mean input tokens of a request before the window, ``[tier, model]``.

        Tiers are those of the load: all deferrable tiers are one, or all tiers are one. Without a
        request, the value is 1.
        """
        traffic, demand = self.inputs.traffic, self.inputs.traffic.demand
        deferrable = {tier.name for tier in self.inputs.hardware.tiers if tier.deferrable}
        names = self.load.tiers
        before = demand.inside(demand.start_s, self.inputs.window.start_s)
        requests, tokens = np.zeros((2, max(1, len(names)), len(traffic.models)))
        for i, key in enumerate(demand.keys):
            tier = DEFERRABLE if key.tier in deferrable else key.tier
            if names and tier not in names:
                continue
            tier_and_model = names.index(tier) if names else 0, traffic.models.index(key.model)
            requests[tier_and_model] += np.nansum(demand.requests[i, before])
            tokens[tier_and_model] += np.nansum(demand.input_tokens[i, before])
        return np.where(tokens > 0, ratio(tokens, requests, 1.0), 1.0)

    def horizon_of_period(self, period: int, window: PlanningProblem) -> HorizonProblem:
        """Return ``window``, the problem of period number ``period``, as a horizon of one period.

        Only horizons allow unserved demand and limits of cross-region traffic.
        """
        tiers = self.load.tier_tps
        return HorizonProblem(
            (window,),
            self.inputs.window.period_s,
            names=self.names[period : period + 1],
            tiers=self.load.tiers,
            tier_tps=None if tiers is None else tiers[:, period : period + 1],
            reroute=self.inputs.settings.reroute,
        )

    def horizon_of_all(self) -> HorizonProblem:
        """Return all periods as one problem, with the setting's limits over the window."""
        hardware, settings = self.inputs.hardware, self.inputs.settings
        window, objective, limits = self.inputs.window, settings.objective, settings.in_all
        period_s = window.period_s
        # A start is requested as many periods ahead as the cold start has whole periods. The rest
        # of the cold start is charged as a cost: price times time.
        lead = int(hardware.startup_s // period_s)
        remaining = (hardware.startup_s - lead * period_s) / period_s
        problems = [
            replace(period, start_usd=period.usd_per_hour * remaining) for period in self.problems
        ]
        reserved_usd = on_demand_usd = None
        if objective.reserve:
            reserved_usd, on_demand_usd = hardware.reserved_prices(
                objective.reserve, window.period_starts_s, period_s
            )
        return HorizonProblem(
            tuple(problems),
            period_s,
            names=self.names,
            lead=lead,
            lend_usd=self._lend_usd(),
            reserved_usd=reserved_usd,
            on_demand_usd=on_demand_usd,
            start=None if self.load.shift is None else self.load.shift.target,
            budget_usd=limits.usd,
            carbon_kg=limits.carbon_kg,
            churn=limits.changes,
            tiers=self.load.tiers,
            tier_tps=self.load.tier_tps,
            reroute=settings.reroute,
        )

    def _lend_usd(self) -> FloatArray | None:
        """Return what lending a replica earns in dollars per hour; None: none may be lent.

        It is a share of the mean price of the day, as in a replay.
        """
        hardware, share = self.inputs.hardware, self.inputs.settings.objective.lend_share
        if share is None:
            return None
        usd = self.problems[0].gpus_per_instance[:, None] * hardware.usd_per_gpu_hour[None]
        return np.asarray(share * usd * ~hardware.spot)


def solve_periods(periods: Periods, progress: Progress) -> ScalingPlan:
    """Solve all periods, one after the other or at once, as the scenario says.

    Raise Infeasible with the conflict in words, unless limited mode chooses which demand to serve.
    """
    if periods.inputs.settings.objective.periods == ALL:
        return _solve_together(periods, progress)
    return _solve_in_turn(periods, progress)


def _solve_horizon(
    periods: Periods, horizon: HorizonProblem, check: Callable[[], None] | None = None
) -> HorizonPlan:
    """Solve a problem over several periods with the scenario's solver settings.

    ``check`` is called regularly, and may raise to cancel.
    """
    return solve_horizon(horizon, **periods.inputs.settings.solver_options, check=check)


def with_planned_starts(periods: Periods, plan: ScalingPlan) -> ScalingPlan:
    """Return ``plan`` with each period's starts counted from the target of the period before.

    ``plan`` counts them from the replicas that ran in its simulation, where a policy may have added
    some.
    """
    windows, before = list[WindowPlan](), plan.initial
    for window, period in zip(plan.windows, periods.problems, strict=True):
        counted = totals(replace(period, current=before), window.target)
        more_usd = 0.0  # change of the objective: weight times change, over all measures
        for measure in MEASURES:
            change = getattr(counted, measure) - getattr(window.totals, measure)
            more_usd += getattr(period.weights, measure) * change
        counted_window = replace(
            window,
            totals=counted,
            objective_usd=window.objective_usd + more_usd,
            bound_usd=window.bound_usd + more_usd,
        )
        windows.append(counted_window)
        before = window.target
    return replace(plan, windows=tuple(windows))


@dataclass(frozen=True, slots=True, eq=False)
class PeriodPlan:
    """The plan of one period, and its unserved tokens/s by tier and model, ``[tier, model]``.

    ``unserved_tps`` is None if all demand is served.
    """

    window: WindowPlan
    unserved_tps: FloatArray | None = None


def solve_period(
    periods: Periods, period: int, current: IntArray, check: Callable[[], None] | None = None
) -> PeriodPlan:
    """Return the plan of period number ``period`` from the fleet before it.

    That fleet is ``current [model, region, GPU column]``. ``check`` is called regularly, and may
    raise to cancel. If there is no feasible plan and the scenario has the setting ``limited``,
    part of the demand is served. Otherwise raise Infeasible with the conflict.
    """
    objective = periods.inputs.settings.objective
    problem_now = replace(periods.problems[period], current=current)
    if objective.utility_usd is not None:
        return _plan_by_utility(periods, period, problem_now, check)
    if objective.reroute is None:
        window = solve_window(
            problem_now, **periods.inputs.settings.solver_options, stable=True, check=check
        )
    else:
        horizon_of_one = periods.horizon_of_period(period, problem_now)
        (window,) = by_window(horizon_of_one, _solve_horizon(periods, horizon_of_one, check))
    unserved = None
    if window.status == INFEASIBLE and objective.limited is not None:
        window, unserved = _serve_partially(periods, problem_now, window, period)
    if window.status == INFEASIBLE:
        name = periods.names[period]
        raise Infeasible(f"There is no feasible plan for {name}. {window.conflict}")
    return PeriodPlan(window, unserved)


def _plan_by_utility(
    periods: Periods, period: int, window_problem: PlanningProblem, check: Callable[[], None] | None
) -> PeriodPlan:
    """Plan a period that serves only demand whose utility in dollars exceeds its cost.

    ``window_problem`` is the problem of period number ``period``.
    """
    partial = replace(
        periods.horizon_of_period(period, window_problem), priority=periods.tier_values, traded=True
    )
    plan = _solve_horizon(periods, partial, check)
    if plan.status == INFEASIBLE:
        raise Infeasible(f"There is no feasible plan for {periods.names[period]}. {plan.conflict}")
    (window,) = by_window(partial, plan)
    return PeriodPlan(window, plan.unserved_tps[0] if plan.unserved_tps.any() else None)


def shares_of(periods: Periods, period: int, target: IntArray) -> FloatArray:
    """Return what share of each region's tokens is served where, ``[model, home, serving]``.

    It is that of period number ``period`` with the replicas ``target [model, region, GPU column]``.
    ``home`` is the region where requests arrive.
    """
    horizon_of_one = HorizonProblem(
        (periods.problems[period],),
        periods.inputs.window.period_s,
        reroute=periods.inputs.settings.reroute,
    )
    (shares,) = shares_planned(horizon_of_one, target[None])
    return np.asarray(shares)


def _plan_of_windows(
    periods: Periods, windows: Sequence[WindowPlan], serving: IntArray
) -> ScalingPlan:
    """Return one plan of the window from the plans of all its periods.

    ``serving [period, model, region, GPU column]`` are the replicas that serve.
    """
    window, first = periods.inputs.window, periods.problems[0]
    horizon = HorizonProblem(
        periods.problems, window.period_s, reroute=periods.inputs.settings.reroute
    )
    return ScalingPlan(
        models=first.models,
        regions=first.regions,
        gpus=first.gpus,
        gpus_per_instance=first.gpus_per_instance,
        period_start_s=window.period_starts_s,
        period_s=window.period_s,
        initial=first.current,
        demand_tps=np.stack([period.demand_tps.max(axis=2) for period in periods.problems]),
        windows=tuple(windows),
        rerouted_tps=rerouted_tps(horizon, serving),
        shares=shares_planned(horizon, serving),
    )


def plan_of(periods: Periods, answers: Sequence[PeriodPlan]) -> ScalingPlan:
    """Return one plan of the window from ``answers``, the plans of all its periods."""
    windows = [answer.window for answer in answers]
    plan = _plan_of_windows(periods, windows, np.stack([window.target for window in windows]))
    if all(answer.unserved_tps is None for answer in answers):
        return plan
    # Some demand is not served, so the plan also says by which rule it was chosen.
    all_served = np.zeros((max(1, len(periods.load.tiers)), len(plan.models)))
    unserved = [
        all_served if answer.unserved_tps is None else answer.unserved_tps for answer in answers
    ]
    return replace(
        plan,
        tiers=periods.load.tiers or ALL_TIERS,
        unserved_tps=np.stack(unserved),
        policy=periods.inputs.settings.objective.limited or EXACT,
    )


def plan_with_targets(periods: Periods, plan: ScalingPlan, target: IntArray) -> ScalingPlan:
    """Return ``plan`` with the replica counts ``target``, without a proven bound of its cost.

    ``target`` is ``[period, model, region, GPU column]``.
    """
    answers = []
    current = plan.initial
    for period, window, counts in zip(periods.problems, plan.windows, target, strict=True):
        window_problem = replace(period, current=current)
        answers.append(PeriodPlan(_unproven_plan(window_problem, window, counts)))
        current = counts
    return plan_of(periods, answers)


def _solve_in_turn(periods: Periods, progress: Progress) -> ScalingPlan:
    """Plan the periods one after the other, each from the target of the one before."""
    answers: list[PeriodPlan] = []
    current, total = periods.problems[0].current, len(periods.problems)
    for period in range(total):

        def check(done: int = period) -> None:
            """Report progress, which can raise to cancel."""
            progress(done / total, f"Planning period {done + 1} of {total}")

        check()
        answers.append(solve_period(periods, period, current, check))
        current = answers[-1].window.target
    progress(1.0, f"Planning period {total} of {total}")
    return plan_of(periods, answers)


def _serve_partially(
    periods: Periods, window_problem: PlanningProblem, failed: WindowPlan, period: int
) -> tuple[WindowPlan, FloatArray | None]:
    """Return a plan that serves as much as the limits permit, and the unserved tokens/s.

    These are ``[tier, model]``. ``window_problem`` is the problem of period number ``period``, and
    ``failed`` the infeasible plan of all its demand. The plan keeps the sentence on the conflict.
    If no plan is feasible at all, return the failed plan and None.
    """
    objective, worth = periods.inputs.settings.objective, periods.tier_values
    policy = objective.limited or EXACT
    if policy == EXACT:
        return _serve_most_valuable(periods, window_problem, failed, period)
    # By tier: None unless tiers are planned separately, and decide which demand is critical.
    critical_tps: FloatArray | None = None
    critical_worth: FloatArray | None = None
    if periods.load.tier_tps is None:
        tier_tps = window_problem.demand_tps[None]  # [tier, ...] with all tiers as one
    else:
        tier_tps = periods.load.tier_tps[:, period]
        if objective.criticality == BY_TIER:
            critical_tps, critical_worth = tier_tps, worth
    served = serve_limited(window_problem, worth.max(axis=0), policy, critical_tps, critical_worth)
    unserved = unserved_by_tier(
        served.unserved_tps, served.unserved_joint_tps, tier_tps, window_problem.epsilon, worth
    )
    return _unproven_plan(window_problem, failed, served.target), unserved


def _serve_most_valuable(
    periods: Periods, window_problem: PlanningProblem, failed: WindowPlan, period: int
) -> tuple[WindowPlan, FloatArray | None]:
    """Return the plan that leaves the least valuable demand unserved, and the unserved tokens/s.

    These are ``[tier, model]``. ``failed`` is the infeasible plan of all demand, whose sentence on
    the conflict the plan keeps. If no plan is feasible, return ``failed`` and None.
    """
    # A minimum above the maximum may be the conflict, so it is lowered.
    minimum = np.minimum(window_problem.minimum, window_problem.maximum)
    horizon = periods.horizon_of_period(period, replace(window_problem, minimum=minimum))
    horizon = replace(horizon, priority=periods.tier_values)
    plan = _solve_horizon(periods, horizon)
    if plan.status == INFEASIBLE:
        return replace(failed, conflict=plan.conflict), None
    (window,) = by_window(horizon, plan)
    return replace(window, conflict=failed.conflict), plan.unserved_tps[0]


def _unproven_plan(
    window_problem: PlanningProblem, failed: WindowPlan, target: IntArray
) -> WindowPlan:
    """Return a feasible plan with the replicas ``target``, without a proven bound of its cost.

    It has the other fields of ``failed``. ``target`` is ``[model, region, GPU column]``.
    """
    fleet = fleet_usd(window_problem, target)
    objective = fleet + start_usd(window_problem, target)
    return replace(
        failed,
        status=FEASIBLE,
        target=target,
        objective_usd=objective,
        fleet_usd=fleet,
        bound_usd=np.nan,  # greedy targets have no proven bound
        gap=np.nan,
        binding=binding_constraints(window_problem, target),
        totals=totals(window_problem, target),
    )


def _solve_together(periods: Periods, progress: Progress) -> ScalingPlan:
    """Return the plan of all periods, solved as one program.

    If it is infeasible and the scenario has the setting ``limited``, the least valuable demand
    stays unserved, and the first period states the conflict. Otherwise raise Infeasible.
    """
    objective, horizon = periods.inputs.settings.objective, periods.horizon_of_all()
    if objective.utility_usd is not None:
        horizon = replace(horizon, priority=periods.tier_values, traded=True)
    plan, conflict = _solve_as_far_as_possible(periods, horizon, progress)
    first, *others = by_window(horizon, plan)
    first = replace(first, conflict=conflict or plan.conflict)
    serving = plan.target - plan.lent
    scaling_plan = replace(
        _plan_of_windows(periods, [first, *others], serving),
        together=True,
        lent=None if horizon.lend_usd is None else plan.lent,
        reserved=None if horizon.reserved_usd is None else plan.reserved,
        shift=periods.load.shift,
    )
    if not conflict and not plan.unserved_tps.any():  # all demand is served
        return replace(scaling_plan, tiers=(), unserved_tps=None, policy="")
    tiers, policy = periods.load.tiers or ALL_TIERS, objective.limited or EXACT
    return replace(scaling_plan, tiers=tiers, unserved_tps=plan.unserved_tps, policy=policy)


def _solve_as_far_as_possible(
    periods: Periods, horizon: HorizonProblem, progress: Progress
) -> tuple[HorizonPlan, str]:
    """Return (plan, conflict): the plan of all periods, of all demand if that is feasible.

    Otherwise the plan leaves the least valuable demand unserved, and ``conflict`` is a sentence on
    why not all demand can be served; else "". Raise Infeasible if there is no such plan, or without
    the setting ``limited``.
    """

    def check() -> None:
        """Report progress, which can raise to cancel."""
        progress(0.5, "Planning all periods together")

    plan = _solve_horizon(periods, horizon, check)
    if plan.status != INFEASIBLE:
        return plan, ""
    conflict = plan.conflict
    if periods.inputs.settings.objective.limited is None:
        raise Infeasible(f"There is no feasible plan. {conflict}")
    plan = _solve_horizon(periods, replace(horizon, priority=periods.tier_values), check)
    if plan.status == INFEASIBLE:
        raise Infeasible(f"There is no feasible plan, however little is served. {plan.conflict}")
    return plan, conflict
