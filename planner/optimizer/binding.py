"""Which constraints hold a plan back: those with less slack than one instance, in sentences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from planner.optimizer.figures import (
    global_need_tps,
    gpus_used,
    local_need_tps,
    local_served_tps,
    spent,
)
from planner.optimizer.objective import BUDGET, CARBON, CHURN, caps, totals
from planner.optimizer.problem import Binding, IntArray, PlanningProblem
from planner.optimizer.words import amount, in_region, instances, on_gpu, share, tokens


def binding_constraints(problem: PlanningProblem, target: IntArray) -> tuple[Binding, ...]:
    """Every constraint that ``target`` meets without an instance to spare, by family."""
    return (
        *_capacity(problem, target),
        *_maximum(problem, target),
        *_local(problem, target),
        *_global(problem, target),
        *_minimum(problem, target),
        *_caps(problem, target),
    )


def _caps(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    """Less is left than the cheapest instance would take (of churn: than one change)."""
    known = totals(problem, target)
    taken = {BUDGET: known.usd, CARBON: known.kg, CHURN: float(known.starts + known.stops)}
    for cap in caps(problem):
        limit = taken[cap.family] + cap.limit - spent(problem, target, cap)
        able = cap.per_instance[problem.theta_tps[:, None, :].repeat(target.shape[1], 1) > 0]
        step = 1.0 if cap.family == CHURN else float(able[able > 0].min(initial=np.inf))
        if limit - taken[cap.family] < step:
            held, most = amount(cap.family, taken[cap.family]), amount(cap.family, limit)
            yield Binding(cap.family, "the whole plan", f"The plan takes {held} of {most} allowed.")


def _capacity(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    """Fewer GPUs are free than the smallest instance that could use them takes."""
    used = gpus_used(problem, target)
    for region, gpu in np.argwhere(used > 0):
        sizes = problem.gpus_per_instance[problem.theta_tps[:, gpu] > 0, gpu]
        total, planned = int(problem.capacity_gpus[region, gpu]), int(used[region, gpu])
        if total - planned >= sizes.min():
            continue
        where = f"{problem.gpus[gpu]} in {problem.regions[region]}"
        planned_words = (
            f"all {total:,} GPUs are planned"
            if planned == total
            else f"{planned:,} of {total:,} GPUs are planned and an instance takes {sizes.min()}"
        )
        sentence = (
            f"{problem.regions[region]} can hold no more {problem.gpus[gpu]}: {planned_words}."
        )
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
    """Serving less by the smallest instance there would miss the region's own need."""
    need, served = local_need_tps(problem), local_served_tps(problem, target)
    for model, region in np.argwhere(need > 0):
        present = target[model, region] > 0
        if not present.any():
            continue
        smallest = problem.theta_tps[model, present].min()
        if served[model, region] - need[model, region] >= smallest:
            continue
        where = in_region(problem, model, region)
        count = instances(int(target[model, region].sum()))
        sentence = (
            f"{where} keeps {count} to serve {share(problem.epsilon)} of its own peak, "
            f"{tokens(need[model, region])}; they serve {served[model, region]:,.0f}."
        )
        yield Binding("local", where, sentence)


def _global(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    """Serving less by the smallest instance anywhere would miss the joint peak of all regions."""
    need, served = global_need_tps(problem), local_served_tps(problem, target).sum(axis=1)
    for (model,) in np.argwhere(need > 0):
        present = target[model].any(axis=0)
        if not present.any():
            continue
        smallest = problem.theta_tps[model, present].min()
        if served[model] - need[model] >= smallest:
            continue
        where = problem.models[model]
        count = instances(int(target[model].sum()))
        sentence = (
            f"{where} keeps {count} in all regions to serve their joint peak, "
            f"{tokens(need[model])}; they serve {served[model]:,.0f}."
        )
        yield Binding("global", where, sentence)
