"""Find the constraints that limit a plan: those with less slack than one instance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from planner.optimizer.figures import (
    TOLERANCE,
    global_need_tps,
    gpus_used,
    local_need_tps,
    spent,
    without_a_region,
)
from planner.optimizer.formatting import (
    amount,
    in_region,
    instances,
    on_gpu,
    share,
    tokens,
    without,
)
from planner.optimizer.objective import BUDGET, CARBON, CHURN, caps, totals
from planner.optimizer.pools import carried_by_pools
from planner.optimizer.problem import Binding, PlanningProblem
from planner.optimizer.roles import Side, carried_tps, sides
from simulation.arrays import FloatArray, IntArray


def binding_constraints(problem: PlanningProblem, target: IntArray) -> tuple[Binding, ...]:
    """Return every constraint that ``target`` meets with less than an instance to spare."""
    return (
        *_capacity(problem, target),
        *_maximum(problem, target),
        *_local(problem, target),
        *_global(problem, target),
        *_minimum(problem, target),
        *_caps(problem, target),
    )


def _caps(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    """Yield caps with less left than the cheapest instance uses (churn: less than one change)."""
    known = totals(problem, target)
    used = {BUDGET: known.usd, CARBON: known.kg, CHURN: float(known.starts + known.stops)}
    for cap in caps(problem):
        limit = used[cap.family] + cap.limit - spent(problem, target, cap)
        able = cap.per_instance[problem.theta_tps[:, None, :].repeat(target.shape[1], 1) > 0]
        step = 1.0 if cap.family == CHURN else float(able[able > 0].min(initial=np.inf))
        if limit - used[cap.family] < step:
            used_words, most = amount(cap.family, used[cap.family]), amount(cap.family, limit)
            yield Binding(
                cap.family, "the whole plan", f"The plan takes {used_words} of {most} allowed."
            )


def _capacity(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    """Yield capacities with fewer free GPUs than the smallest instance that could use them."""
    used = gpus_used(problem, target)
    for region, gpu in np.argwhere(used > 0):
        able = (problem.theta_tps > 0) & (problem.rows == gpu)
        sizes, name = problem.gpus_per_instance[able], problem.row_names[gpu]
        total, planned = int(problem.capacity_gpus[region, gpu]), int(used[region, gpu])
        if total - planned >= sizes.min():
            continue
        where = f"{name} in {problem.regions[region]}"
        planned_words = (
            ("its only GPU is planned" if total == 1 else f"all {total:,} GPUs are planned")
            if planned == total
            else f"{planned:,} of {total:,} GPUs are planned and an instance takes {sizes.min()}"
        )
        sentence = f"{problem.regions[region]} can hold no more {name}: {planned_words}."
        yield Binding("capacity", where, sentence)


def _maximum(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    for model, region, gpu in np.argwhere((target > 0) & (target == problem.maximum)):
        where = on_gpu(problem, model, region, gpu)
        most = instances(int(target[model, region, gpu]))
        yield Binding("maximum", where, f"{where} is at its maximum of {most}.")


def _minimum(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    for model, region, gpu in np.argwhere((target > 0) & (target == problem.minimum)):
        where = on_gpu(problem, model, region, gpu)
        least = instances(int(target[model, region, gpu]))
        yield Binding("minimum", where, f"{where} is held at its minimum of {least}.")


def _local(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    """Yield local needs that the loss of the smallest instance there would miss."""
    need, every = local_need_tps(problem), sides(problem)
    last = [_last(problem, target, side) for side in every]
    for model, region, served, weakest in _weakest(problem, target, every):
        side = every[weakest]
        present = (target[model, region] > 0) & side.columns
        if need[model, region] <= 0 or not present.any():
            continue
        if served - need[model, region] >= last[weakest][model, region][present].min() / side.share:
            continue
        where = in_region(problem, model, region)
        count = instances(int(target[model, region, side.columns].sum()))
        sentence = (
            f"{where} keeps {count}{_for(side)} to serve {share(problem.epsilon)} of its own "
            f"peak, {tokens(need[model, region])}; they serve {served:,.0f}{without(problem)}."
        )
        yield Binding("local", where + _for(side), sentence)


def _weakest(
    problem: PlanningProblem, target: IntArray, every: Sequence[Side]
) -> Iterator[tuple[int, int, float, int]]:
    """Yield model, region, tokens/s served there, and the side of ``every`` that limits it.

    Sides of one name differ only in the instances lost. The weakest of them counts.
    """
    carried = carried_tps(problem, target)
    for name in dict.fromkeys(side.name for side in every):
        alike = [place for place, side in enumerate(every) if side.name == name]
        worst = carried[alike].argmin(axis=0)
        for model, region in np.ndindex(worst.shape):
            place = alike[worst[model, region]]
            yield model, region, float(carried[place, model, region]), place


def _global(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    """Yield joint peaks that the loss of the smallest instance anywhere would miss.

    If a region may be lost, the other regions must serve the peak.
    """
    need, carried = global_need_tps(problem), carried_tps(problem, target)
    weakest, reported = carried.min(axis=0), set[tuple[int, str]]()
    left = without_a_region(problem, weakest)
    for place, side in enumerate(sides(problem)):
        last = _last(problem, target, side)
        for (model,) in np.argwhere(need > 0):
            held = (target[model] > 0) & side.columns
            # If another side is weaker, an instance less of this one changes nothing.
            tight = held & (carried[place, model] <= weakest[model] * (1 + TOLERANCE))[:, None]
            if not tight.any() or (model, side.name) in reported:
                continue
            if left[model] - need[model] >= last[model][tight].min() / side.share:
                continue
            reported.add((model, side.name))
            count = instances(int(target[model][:, side.columns].sum()))
            lost = " without any one of them" if problem.lose_region else ""
            sentence = (
                f"{problem.models[model]} keeps {count}{_for(side)} in all regions to serve their "
                f"joint peak{lost}, {tokens(need[model])}; they serve {left[model]:,.0f}"
                f"{without(problem)}."
            )
            family = "regions" if problem.lose_region else "global"
            yield Binding(family, problem.models[model] + _for(side), sentence)


def _last(problem: PlanningProblem, target: IntArray, side: Side) -> FloatArray:
    """Return the capacity that each pool of a side loses with one more instance, ``[l, r, g]``."""
    less = carried_by_pools(problem, target, side.lost + 1)
    return carried_by_pools(problem, target, side.lost) - less


def _for(side: Side) -> str:
    return f" for {side.name}" if side.name else ""
