"""Small horizons, and their optimum by counting every fleet of every period."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from planner.optimizer.horizon import HorizonProblem
from planner.optimizer.horizon.solve import solve_horizon
from planner.optimizer.objective import per_hour
from planner.optimizer.pareto_front import TIE, FrontPoint, pareto_front
from planner.optimizer.problem import FEASIBLE, MEASURES, OPTIMAL, PlanningProblem, Weights
from tests.optimizer.problems import bare_problem, left_without_a_region, served_by_every_fleet


def steps(demand: list[float], **changes: Any) -> HorizonProblem:
    """One model, one region, one GPU type of 100 tokens/s at 10 an hour and 4 a start."""
    shape = (1, 1, 1)
    limits = {name: changes.pop(name) for name in list(changes) if name.startswith("window_")}
    window = bare_problem(
        ("m",),
        ("here",),
        ("H100",),
        current=np.full(shape, changes.pop("current", 0)),
        theta_tps=np.array([[100.0]]),
        usd_per_hour=np.full(shape, 10.0),
        start_usd=np.full(shape, 4.0),
        demand_tps=np.zeros(shape),
        capacity_gpus=np.full((1, 1), changes.pop("capacity", 9)),
        maximum=np.full(shape, 9),
        **{name.removeprefix("window_"): value for name, value in limits.items()},
    )
    windows = tuple(replace(window, demand_tps=np.full(shape, tps)) for tps in demand)
    return HorizonProblem(windows, period_s=3600.0, **changes)


def random_horizon(seed: int) -> HorizonProblem:
    """Two periods or three, two cells; every family of constraints comes up among the seeds."""
    rng = np.random.default_rng(seed)
    regions, gpus = ((2, 1), (1, 2))[seed % 2]
    periods, shape = int(rng.integers(2, 4)), (1, regions, gpus)
    lend, lead = rng.random() < 0.4, int(rng.choice([0, 0, 1]))
    periods = 2 if lend else periods
    theta, usd = rng.uniform(50, 150, (1, gpus)).round(1), rng.uniform(1, 10, gpus).round(2)
    window = PlanningProblem(
        models=("m",),
        regions=tuple("xy"[:regions]),
        gpus=tuple("gh"[:gpus]),
        current=rng.integers(0, 3, shape),
        theta_tps=theta,
        usd_per_hour=usd * np.ones(shape),
        start_usd=usd * rng.choice([0.0, 0.17, 1.0], shape),
        gpus_per_instance=rng.integers(1, 3, (1, gpus)),
        demand_tps=np.zeros((1, regions, 2)),
        capacity_gpus=rng.integers(2, 7, (regions, gpus)),
        minimum=rng.integers(0, 2, shape) * rng.integers(0, 2, shape),
        maximum=rng.integers(2, 4, shape),
        epsilon=float(rng.choice([0.3, 0.8, 1.0])),
        kw=rng.uniform(0.2, 2.0, shape),
        kg_per_kwh=rng.uniform(0.0, 0.8, regions),
        stages=np.array([1, 2]) if gpus == 2 and rng.random() < 0.4 else None,
        spot=np.array([False, True]) if gpus == 2 and rng.random() < 0.4 else None,
        spot_share=0.4,
        budget_usd=float(rng.uniform(20, 40)) if rng.random() < 0.3 else np.inf,
        carbon_kg=float(rng.uniform(1, 4)) if rng.random() < 0.3 else np.inf,
        churn=float(rng.integers(0, 4)) if rng.random() < 0.3 else np.inf,
    )
    demand = rng.uniform(0, 200, (periods, 1, regions, 2)).round(1)
    return HorizonProblem(
        tuple(replace(window, demand_tps=tps) for tps in demand),
        period_s=1800.0,
        lead=lead,
        lend_usd=usd * rng.uniform(0.2, 0.9, shape) if lend else None,
        reroute=rng.choice([0.0, 0.2, 1.0], (2, 2))
        if regions == 2 and rng.random() < 0.5
        else None,
        budget_usd=float(rng.uniform(20, 60)) if rng.random() < 0.3 else np.inf,
        carbon_kg=float(rng.uniform(1, 6)) if rng.random() < 0.3 else np.inf,
        churn=float(rng.integers(0, 6)) if rng.random() < 0.3 else np.inf,
    )


def best_by_counting(problem: HorizonProblem) -> float | None:
    """The least cost of all periods over every fleet and everything lent, None without one."""
    first, periods, hours = problem.first, len(problem.windows), problem.hours
    cells = first.current.size
    most = np.tile(first.maximum.ravel(), periods)
    x = np.array(list(itertools.product(*(range(int(n) + 1) for n in most))))
    lent = np.zeros((1, x.shape[1]), int)
    if problem.lend_usd is not None:
        lent = np.array(list(itertools.product(*(range(int(n) + 1) for n in most))))
    x, lent = np.repeat(x, len(lent), axis=0), np.tile(lent, (len(x), 1))
    keep = (lent <= x).all(axis=1)
    shape = (-1, periods, *first.current.shape)
    x, lent = x[keep].reshape(shape), lent[keep].reshape(shape)
    before = np.concatenate([np.broadcast_to(first.current, (len(x), 1, *shape[2:])), x[:, :-1]], 1)
    up, down = np.maximum(0, x - before), np.maximum(0, before - x)
    asked = np.zeros_like(up)
    asked[:, : periods - problem.lead] = up[:, problem.lead :]
    ok = ~up[:, : problem.lead].any(axis=(1, 2, 3, 4))
    cost, all_usd, all_kg = np.zeros((3, len(x)))
    assert cells == 2
    for p, window in enumerate(problem.windows):
        starting = asked[:, max(0, p - problem.lead + 1) : p + 1].sum(axis=1) * (problem.lead > 0)
        serving = x[:, p] - lent[:, p]
        floor = window.minimum
        if p < problem.lead:
            floor = np.minimum(floor, first.current)
        ok &= (serving >= floor).all(axis=(1, 2, 3))
        gpus = np.einsum("nlrg,lg->nrg", x[:, p] + starting, window.gpus_per_instance)
        ok &= (gpus <= window.capacity_gpus).all(axis=(1, 2))
        served = served_by_every_fleet(window, serving)
        peak, joint = window.demand_tps.max(axis=2), window.demand_tps.sum(axis=1).max(axis=1)
        ok &= (served >= window.epsilon * peak - 1e-6).all(axis=(1, 2))
        ok &= (left_without_a_region(window, served) >= joint - 1e-6).all(axis=1)
        if problem.reroute is not None:
            rho = window.demand_tps[0, :, window.demand_tps[0].sum(axis=0).argmax()]
            low = np.maximum(rho[0] - served[:, 0, 0], -problem.reroute[1, 0] * rho[1])
            high = np.minimum(served[:, 0, 1] - rho[1], problem.reroute[0, 1] * rho[0])
            ok &= low <= high + 1e-6
            for lost, left in ((0, 1), (1, 0)) if window.lose_region else ():
                ok &= (served[:, 0, left] >= rho.sum() - 1e-6) & (
                    (rho[lost] <= 1e-6) | (problem.reroute[lost, left] > 0)
                )
        paid = x[:, p] + starting
        each = np.divide(window.start_usd, window.usd_per_hour)
        usd = (paid * window.usd_per_hour + asked[:, p] * window.start_usd).sum(axis=(1, 2, 3))
        hours_of = (paid + asked[:, p] * each) * window.kw
        kg = (hours_of * window.kg_per_kwh[:, None]).sum(axis=(1, 2, 3))
        if problem.lend_usd is not None:
            usd = usd - (lent[:, p] * problem.lend_usd).sum(axis=(1, 2, 3))
        ok &= (usd <= window.budget_usd + 1e-9) & (kg <= window.carbon_kg + 1e-9)
        ok &= (up[:, p] + down[:, p]).sum(axis=(1, 2, 3)) <= window.churn
        cost += usd * hours
        all_usd += usd * hours
        all_kg += kg * hours
    ok &= (all_usd <= problem.budget_usd + 1e-9) & (all_kg <= problem.carbon_kg + 1e-9)
    ok &= (up + down).sum(axis=(1, 2, 3, 4)) <= problem.churn
    return float(cost[ok].min()) if ok.any() else None


def front_of(toy, first, second, points, gap=1e-3):
    """Return the Pareto front of a toy problem: every cell is a plan within a cap on ``second``."""
    cap = {"usd": "budget_usd", "kg": "carbon_kg"}[second]
    scale = {m: float(per_hour(toy.first, m).mean()) or 1.0 for m in (first, second)}

    def least(of, other, level):
        tie = TIE * scale[of] / scale[other]
        weights = Weights(**dict.fromkeys(MEASURES, 0.0) | {of: 1.0, other: tie})
        windows = tuple(replace(window, weights=weights) for window in toy.windows)
        capped = replace(toy, windows=windows, **{cap: min(level, getattr(toy, cap))})
        plan = solve_horizon(capped, gap=gap, stable=False)
        if plan.status not in (OPTIMAL, FEASIBLE):
            return None
        used = {m: sum(getattr(total, m) for total in plan.totals) for m in MEASURES}
        bound = min(used[of], max(0.0, plan.bound - tie * used[other]))
        return FrontPoint(used[first], used[second], bound, plan)

    return pareto_front(
        lambda level: least(first, second, level), lambda: least(second, first, np.inf), points
    )
