"""Find the constraints that limit a plan: those with less slack than one instance."""

from collections.abc import Iterator, Sequence

import numpy as np

from planner.optimizer.figures import (
    TOLERANCE,
    cap_use,
    global_need_tps,
    gpus_used,
    local_need_tps,
    served_without_largest_region,
)
from planner.optimizer.formatting import (
    cap_words,
    in_region,
    on_gpu,
    percent,
    redundancy_words,
    replica_words,
)
from planner.optimizer.objective import CHURN, POWER, caps, totals
from planner.optimizer.pools import carried_by_pools
from planner.optimizer.problem import BOTH, Binding, PlanningProblem
from planner.optimizer.roles import Side, carried_tps, role_sides
from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import ROLES


def binding_constraints(problem: PlanningProblem, target: IntArray) -> tuple[Binding, ...]:
    """Return the constraints that ``target`` meets with less than one instance to spare."""
    return (
        *_binding_capacities(problem, target),
        *_pools_at(problem, target, "maximum", problem.maximum),
        *_binding_local_needs(problem, target),
        *_binding_joint_peaks(problem, target),
        *_pools_at(problem, target, "minimum", problem.minimum),
        *_binding_caps(problem, target),
    )


def _binding_caps(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    """Yield the limits on many pools that leave too little for one more instance.

    They are budget, carbon and power. The limit on changes binds if it leaves no start or stop.
    """
    can_run = problem.theta_tps[:, None, :].repeat(target.shape[1], 1) > 0  # [l, r, g]
    for cap in caps(problem):
        used, limit = cap_use(problem, target, cap), cap.limit
        if cap.family == CHURN:
            # Use and limit of this cap leave out the same constant. Take the true numbers.
            changes = totals(problem, target)
            used, limit = float(changes.starts + changes.stops), problem.churn
            smallest_use = 1.0  # a start or a stop
        else:
            uses = cap.per_instance[can_run]
            smallest_use = float(uses[uses > 0].min(initial=np.inf))
        if limit - used >= smallest_use:
            continue
        is_power = cap.family == POWER
        user = cap.where[0].upper() + cap.where[1:] if is_power else "The plan"
        amounts = f"{cap_words(cap.family, used)} of {cap_words(cap.family, limit)}"
        yield Binding(cap.family, cap.where, f"{user} uses {amounts} allowed.")


def _binding_capacities(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    """Yield capacities with fewer free GPUs than the smallest instance that could use them."""
    used = gpus_used(problem, target)
    for region, row in np.argwhere(used > 0):
        can_use = (problem.theta_tps > 0) & (problem.rows == row)
        total = int(problem.capacity_gpus[region, row])
        free = total - used[region, row]
        if free >= problem.gpus_per_instance[can_use].min():
            continue
        place, gpus = problem.regions[region], problem.row_names[row]
        sentence = (
            f"{place} has too few of its {total:,} {gpus} left for another replica."
            if free
            else f"{place} uses all its {total:,} {gpus}."
        )
        yield Binding("capacity", f"{gpus} in {place}", sentence)


def _pools_at(
    problem: PlanningProblem, target: IntArray, limit: str, counts: IntArray
) -> Iterator[Binding]:
    """Yield the pools whose instances equal ``counts [model, region, GPU column]``.

    ``limit`` says what the counts are: "minimum" or "maximum".
    """
    for model, region, gpu in np.argwhere((target > 0) & (target == counts)):
        where = on_gpu(problem, model, region, gpu)
        count_words = replica_words(int(target[model, region, gpu]))
        yield Binding(
            limit,
            where,
            f"{where} is at its {limit} of {count_words}.",
            model=problem.models[model],
            region=problem.regions[region],
            role=ROLES[BOTH if problem.stages is None else problem.stages[gpu]],
        )


def _binding_local_needs(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    """Yield regions that could not serve their own demand of a model with one instance less.

    A side is the GPU columns of one role, such as prefill. The weakest side of a role is tested.
    """
    all_needed_tps, all_sides = local_need_tps(problem), role_sides(problem)
    last_tps_by_side = [_last_instance_tps(problem, target, side) for side in all_sides]
    reported = set[str]()
    for model, region, served_tps, side_index in _limiting_sides(problem, target, all_sides):
        side, needed_tps = all_sides[side_index], float(all_needed_tps[model, region])
        has_instances = (target[model, region] > 0) & side.columns  # [GPU column]
        if needed_tps <= 0 or not has_instances.any():
            continue
        last_tps_by_column = last_tps_by_side[side_index][model, region]
        smallest_loss_tps = last_tps_by_column[has_instances].min() / side.share
        stage = _stage(problem, side, has_instances)
        where = in_region(problem, model, region) + _side_words(side, stage)
        # An aggregated pool is on both sides, and is reported once.
        if served_tps - needed_tps >= smallest_loss_tps or where in reported:
            continue
        reported.add(where)
        replicas = int(target[model, region, side.columns].sum())
        redundancy = redundancy_words(problem).removesuffix(" in each region")
        sentence = f"{where}: must serve {percent(problem.epsilon)} of its own peak{redundancy}."
        yield Binding(
            "local",
            where,
            sentence,
            replicas,
            needed_tps,
            served_tps,
            model=problem.models[model],
            region=problem.regions[region],
            role=ROLES[stage],
        )


def _limiting_sides(
    problem: PlanningProblem, target: IntArray, all_sides: Sequence[Side]
) -> Iterator[tuple[int, int, float, int]]:
    """Yield (model, region, tokens/s served, index of a side) for each model, region and role.

    A side is the GPU columns of one role, such as prefill, after the loss of some instances. Of the
    sides of a role, the one that serves least is yielded.
    """
    carried = carried_tps(problem, target)
    roles = [(side.stage, side.owned) for side in all_sides]
    for role in dict.fromkeys(roles):
        same_role = [side_index for side_index, other in enumerate(roles) if other == role]
        weakest = carried[same_role].argmin(axis=0)
        for model, region in np.ndindex(weakest.shape):
            side_index = same_role[weakest[model, region]]
            yield model, region, float(carried[side_index, model, region]), side_index


def _binding_joint_peaks(problem: PlanningProblem, target: IntArray) -> Iterator[Binding]:
    """Yield models whose joint peak over all regions could not be served with one instance less.

    If a region may be lost, the other regions must serve the peak. A side is the GPU columns of one
    role, such as prefill. The side that carries least limits what a region serves.
    """
    carried_by_side = carried_tps(problem, target)  # [side, model, region]
    weakest_tps, reported = carried_by_side.min(axis=0), set[str]()
    # Both by model.
    needed_tps = global_need_tps(problem)
    served_tps = served_without_largest_region(problem, weakest_tps)
    lost = " without any one of them" if problem.lose_region else ""
    for side, side_tps in zip(role_sides(problem), carried_by_side, strict=True):
        last_tps = _last_instance_tps(problem, target, side)
        # Only pools of the weakest side bind: fewer instances of another change nothing.
        is_weakest = side_tps <= weakest_tps * (1 + TOLERANCE)  # [model, region]
        may_bind = (target > 0) & side.columns & is_weakest[..., None]
        for (model,) in np.argwhere((needed_tps > 0) & may_bind.any(axis=(1, 2))):
            pools = may_bind[model]  # [region, GPU column]
            stage = _stage(problem, side, pools.any(axis=0))
            where = problem.models[model] + _side_words(side, stage)
            smallest_loss_tps = last_tps[model][pools].min() / side.share
            if served_tps[model] - needed_tps[model] >= smallest_loss_tps or where in reported:
                continue
            reported.add(where)
            family = "regions" if problem.lose_region else "global"
            replicas = int(target[model][:, side.columns].sum())
            redundancy = redundancy_words(problem)
            sentence = f"{where}: must serve the combined peak of all regions{lost}{redundancy}."
            yield Binding(
                family,
                where,
                sentence,
                replicas,
                float(needed_tps[model]),
                float(served_tps[model]),
                model=problem.models[model],
                role=ROLES[stage],
            )


def _last_instance_tps(problem: PlanningProblem, target: IntArray, side: Side) -> FloatArray:
    """Return the tokens/s that each pool loses with one more instance than ``side`` assumes gone.

    The shape is ``[model, region, GPU column]``.
    """
    remaining = carried_by_pools(problem, target, side.lost + 1)
    return carried_by_pools(problem, target, side.lost) - remaining


def _stage(problem: PlanningProblem, side: Side, columns: BoolArray) -> int:
    """Return the role of a side for pools in ``columns``: BOTH if all of them serve both roles."""
    has_roles = problem.stages is not None and problem.stages[columns].any()
    return side.stage if has_roles else BOTH


def _side_words(side: Side, stage: int) -> str:
    """Return the words of a side and of the role ``stage``, such as " for prefill", or ""."""
    role = "" if stage == BOTH else f" for {ROLES[stage]}"
    return role + (" on owned GPUs" if side.owned else "")
