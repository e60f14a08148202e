"""The constraint families of the program of all periods, one function each.

As in ``constraints`` of a window, with what joins periods. x is what is up, d what is lent of it,
s what is asked for, e the stops; theta, rho and epsilon as in seed 004, section 5.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from planner.optimizer.figures import global_need_tps, local_need_tps
from planner.optimizer.horizon.program import Draft, Entry, epsilon_share
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.sides import sides
from planner.optimizer.solving.arrays import INF, Words
from planner.optimizer.words import amount, in_region, share, tokens
from simulation.arrays import FloatArray, IntArray


def balance(draft: Draft) -> None:
    """x[p] - x[p-1] - s[p-lead] + e[p]  =  0, with x[-1] the present fleet."""
    problem, rows = draft.problem, np.arange(draft.x.shape[1])
    current = problem.first.current[draft.model, draft.region, draft.column]
    for period in range(len(draft.x)):
        entries: list[Entry] = [(rows, draft.x[period], 1.0), (rows, draft.stops[period], 1.0)]
        if period:
            entries.append((rows, draft.x[period - 1], -1.0))
        if period >= problem.lead:
            entries.append((rows, draft.starts[period - problem.lead], -1.0))
        held = np.zeros(len(rows)) if period else current
        draft.builder.add("balance", entries, held, held, len(rows))


def lending(draft: Draft) -> None:
    """x[p] - d[p]  >=  minimum: what is lent serves nothing."""
    if draft.lent is None:
        return
    rows = np.arange(draft.x.shape[1])
    for period, window in enumerate(draft.problem.windows):
        least = window.minimum[draft.model, draft.region, draft.column]
        if period < draft.problem.lead:
            current = draft.problem.first.current[draft.model, draft.region, draft.column]
            least = np.minimum(least, current)
        draft.builder.add("lending", draft.up(period, rows, 1.0), least, INF, len(rows))


def capacity(draft: Draft) -> None:
    """sum size (x[p] + what is starting)  <=  capacity_gpus[r,t]   for every p, r, t."""
    for period, window in enumerate(draft.problem.windows):
        types = window.capacity_gpus.shape[1]
        row = draft.region * types + window.rows[draft.column]
        size = window.gpus_per_instance[draft.model, draft.column]
        entries: list[Entry] = [(row, draft.x[period], size)]
        entries += draft.starting(period, row, size)
        draft.builder.add(
            *("capacity", entries, -INF, window.capacity_gpus.ravel()),
            window.capacity_gpus.size,
            partial(_held, window, draft.problem.name(period)),
        )


def all_sides(draft: Draft) -> None:
    """sum_{g in side} theta (x - d)  >=  share served   for every side, p, l, r."""
    if draft.served is None:
        return
    every = np.arange(draft.pairs)
    for side in sides(draft.problem.first):
        inside = draft.theta * side.columns[draft.column]
        for period in range(len(draft.x)):
            entries = draft.up(period, draft.pair, inside)
            entries.append((every, draft.served[period], -side.share))
            draft.builder.add("side", entries, 0.0, INF, draft.pairs)


def local_coverage(draft: Draft) -> None:
    """sum_g theta (x - d) + sum_k u  >=  epsilon max_w rho[p,l,r,w]   for every p, l, r."""
    every = np.arange(draft.pairs)
    for period, window in enumerate(draft.problem.windows):
        need = local_need_tps(window).ravel()
        entries = draft.serving(period, every)
        if draft.short is not None:
            entries += [(every, tier[period], 1.0) for tier in draft.short]
        draft.builder.add(
            *("local", entries, need, INF, draft.pairs),
            partial(_own, window, draft.problem.name(period)),
        )


def global_coverage(draft: Draft) -> None:
    """sum_r sum_g theta (x - d) + sum_k (sum_r u + v)  >=  max_w sum_r rho   for every p, l."""
    regions = len(draft.problem.first.regions)
    models = len(draft.problem.first.models)
    model_of = np.repeat(np.arange(models), regions)
    for period, window in enumerate(draft.problem.windows):
        entries = draft.serving(period, model_of)
        if draft.short is not None and draft.beyond is not None:
            entries += [(model_of, tier[period], 1.0) for tier in draft.short]
            entries += [(np.arange(models), tier[period], 1.0) for tier in draft.beyond]
        draft.builder.add(
            *("global", entries, global_need_tps(window), INF, models),
            partial(_joint, window, draft.problem.name(period)),
        )


def tiers(draft: Draft) -> None:
    """sum_r u[k,p,l,r] + v[k,p,l]  <=  what there is of the tier   for every k, p, l."""
    if draft.short is None or draft.beyond is None:
        return
    regions = len(draft.problem.first.regions)
    models = len(draft.problem.first.models)
    own = epsilon_share(draft.problem).sum(axis=3)  # [k, p, l]
    joint = draft.problem.demand.sum(axis=3).max(axis=3)
    model_of = np.repeat(np.arange(models), regions)
    for tier, periods in enumerate(draft.short):
        for period, short in enumerate(periods):
            most = np.maximum(own, joint)[tier, period]
            entries: list[Entry] = [(model_of, short, 1.0)]
            entries.append((np.arange(models), draft.beyond[tier, period], 1.0))
            draft.builder.add("tiers", entries, -INF, most, models)


def rerouting(draft: Draft) -> None:
    """f[i,j]  <=  reroute[i,j] rho[l,i,w*], sum_j f[i,j] + u  >=  rho[l,i,w*], sum_i f[i,j]  <=
    what region j serves, at the moment w* of each model's joint peak."""
    problem = draft.problem
    if problem.reroute is None:
        return
    first = problem.first
    models, regions = len(first.models), len(first.regions)
    pair = np.arange(draft.pairs)
    model, region = np.divmod(pair, regions)
    for period, window in enumerate(problem.windows):
        peak = window.demand_tps.sum(axis=1).argmax(axis=1)
        rho = window.demand_tps[np.arange(models), :, peak].ravel()  # [l * r]
        shares = problem.reroute[region] + np.eye(regions)[region]  # [l * r, j]
        flow = draft.builder.variables(
            draft.pairs * regions, upper=(np.minimum(1.0, shares) * rho[:, None]).ravel()
        ).reshape(draft.pairs, regions)
        entries: list[Entry] = [(pair[:, None], flow, 1.0)]
        if draft.short is not None and draft.beyond is not None:
            entries += [(pair, tier[period], 1.0) for tier in draft.short]
            entries += [(pair, tier[period][model], 1.0) for tier in draft.beyond]
        draft.builder.add(
            *("reroute", entries, rho, INF, draft.pairs),
            partial(_homes, window, problem.name(period), rho),
        )
        into = model[:, None] * regions + np.arange(regions)
        entries = [(into, flow, -1.0), *draft.serving(period, pair)]
        draft.builder.add("side", entries, 0.0, INF, draft.pairs)


def caps(draft: Draft) -> None:
    """What a period, and all together, may take of money and carbon and may change."""
    problem = draft.problem
    for family, measure, total in (
        ("budget", "usd", problem.budget_usd),
        ("carbon", "kg", problem.carbon_kg),
    ):
        field = "budget_usd" if family == "budget" else "carbon_kg"
        everything: list[Entry] = []
        for period, window in enumerate(problem.windows):
            entries = draft.takes(period, measure)
            limit = getattr(window, field)
            if np.isfinite(limit):
                said = partial(_cap, family, limit, f" in {problem.name(period)}")
                draft.builder.add(family, entries, -INF, limit, 1, said)
            hours = problem.hours
            everything += [(row, of, np.asarray(by, float) * hours) for row, of, by in entries]
        if np.isfinite(total):
            draft.builder.add(*(family, everything, -INF, total, 1), partial(_whole, family, total))
    changes: list[Entry] = []
    for period, window in enumerate(problem.windows):
        mine: list[Entry] = [(0, draft.stops[period], 1.0)]
        if period >= problem.lead:
            mine.append((0, draft.starts[period - problem.lead], 1.0))
        if np.isfinite(window.churn):
            said = partial(_cap, "churn", window.churn, f" in {problem.name(period)}")
            draft.builder.add("churn", mine, -INF, window.churn, 1, said)
        changes += mine
    if np.isfinite(problem.churn):
        said = partial(_cap, "churn", problem.churn, " over all periods")
        draft.builder.add("churn", changes, -INF, problem.churn, 1, said)


FAMILIES = (
    balance,
    lending,
    capacity,
    all_sides,
    local_coverage,
    global_coverage,
    tiers,
    rerouting,
    caps,
)


def changes_of(draft: Draft) -> IntArray:
    """The variables that count starts and stops."""
    return np.concatenate([draft.starts.ravel(), draft.stops.ravel()])


def _held(window: PlanningProblem, name: str, row: int) -> Words:
    region, kind = divmod(row, window.capacity_gpus.shape[1])
    held = int(window.capacity_gpus[region, kind])
    return lambda: f"{held:,} {window.row_names[kind]} in {window.regions[region]} in {name}"


def _own(window: PlanningProblem, name: str, row: int) -> Words:
    model, region = divmod(row, len(window.regions))
    return lambda: (
        f"{tokens(local_need_tps(window)[model, region])} of {in_region(window, model, region)} "
        f"({share(window.epsilon)} of its peak) in {name}"
    )


def _joint(window: PlanningProblem, name: str, row: int) -> Words:
    return lambda: (
        f"{tokens(global_need_tps(window)[row])} of {window.models[row]} in all regions in {name}"
    )


def _homes(window: PlanningProblem, name: str, rho: FloatArray, row: int) -> Words:
    model, region = divmod(row, len(window.regions))
    return lambda: (
        f"{tokens(rho[row])} from {in_region(window, model, region)}, served there or where it may "
        f"be sent, in {name}"
    )


def _cap(family: str, limit: float, where: str, row: int) -> Words:
    return lambda: f"{amount(family, limit)} at most{where}"


def _whole(family: str, limit: float, row: int) -> Words:
    said = f"${limit:,.2f}" if family == "budget" else f"{limit:,.2f} kg CO2"
    return lambda: f"{said} at most over all periods"
