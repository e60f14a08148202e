"""Explain why no plan meets every demand within every limit, with figures and a remedy.

The checks run from the plainest cause to the subtlest. Each is a separate proof of infeasibility.
For the rest, ``program.conflict`` finds a minimal conflicting set.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from planner.optimizer.figures import (
    TOLERANCE,
    cap_limit,
    cap_use,
    global_need_tps,
    gpus_used,
    local_need_tps,
    local_served_tps,
)
from planner.optimizer.formatting import (
    cap_words,
    first_names,
    in_region,
    join_names,
    percent,
    redundancy_words,
    replica_words,
    tokens_words,
)
from planner.optimizer.objective import caps
from planner.optimizer.pools import fewest_instances
from planner.optimizer.problem import PlanningProblem, single_period
from planner.optimizer.program.conflict import conflicting_set
from planner.optimizer.roles import Side, role_sides
from simulation.arrays import BoolArray, FloatArray, IntArray

# With more GPU types, only single types and all together are tested: subsets double with each type.
SUBSET_TYPES = 6


def conflict_sentences(problem: PlanningProblem) -> str:
    """Explain an infeasible ``problem`` by the first conflict found, in one or more sentences."""
    # A single region must serve all of the joint peaks, not only its local share, so test those
    # first.
    if len(problem.regions) == 1:
        shortages = (_global_shortage, _local_shortage)
    else:
        shortages = (_local_shortage, _global_shortage)
    for check in (_models_without_gpu, _minimum_conflicts, *shortages, _maximum_conflicts):
        first_sentence = next(check(problem), None)
        if first_sentence is not None:
            return first_sentence
    return conflicting_set(single_period(problem))


def unserved_sentence(problem: PlanningProblem, target: IntArray) -> str:
    """Return a sentence on the demand that ``target`` leaves unserved and the caps it exceeds.

    It is "" if there are none. ``target [model, region, GPU column]`` are instances.
    """
    served = local_served_tps(problem, target)
    local_missing_tps = local_need_tps(problem) * (1 - TOLERANCE) - served
    joint_missing_tps = global_need_tps(problem) * (1 - TOLERANCE) - served.sum(axis=1)
    shortages = [
        f"{in_region(problem, model, region)} {tokens_words(local_missing_tps[model, region])}"
        for model, region in np.argwhere(local_missing_tps > 0)
    ]
    shortages += [
        f"{problem.models[model]} overall {tokens_words(joint_missing_tps[model])}"
        for (model,) in np.argwhere(joint_missing_tps > 0)
    ]
    for cap in caps(problem):
        used = cap_use(problem, target, cap)
        if used > cap_limit(cap):
            shortages.append(f"{cap_words(cap.family, used - cap.limit)} beyond the limit")
    if not shortages:
        return ""
    return (
        "The solver hit its time limit. The greedy plan leaves uncovered: "
        f"{first_names(shortages)}. Allow more time, or add capacity."
    )


def _models_without_gpu(problem: PlanningProblem) -> Iterator[str]:
    """Yield a sentence for each model that has demand but no GPU type it can run on."""
    need, can_run = global_need_tps(problem), (problem.theta_tps > 0).any(axis=1)
    for (model,) in np.argwhere((need > 0) & ~can_run):
        yield (
            f"No GPU type here can serve {problem.models[model]}. Its demand peaks at "
            f"{tokens_words(need[model])} over all regions. Add a GPU type, or a profile that "
            f"meets its limits on one of {join_names(problem.gpus)}."
        )


def _minimum_conflicts(problem: PlanningProblem) -> Iterator[str]:
    """Yield a sentence for each region whose minimums exceed its capacity."""
    least_gpus = gpus_used(problem, problem.minimum)
    for region, row in np.argwhere(least_gpus > problem.capacity_gpus):
        capacity = int(problem.capacity_gpus[region, row])
        needed_gpus = int(least_gpus[region, row])
        name = problem.row_names[row]
        gpus = problem.minimum[:, region] * problem.gpus_per_instance  # [model, GPU column]
        gpus_by_model = gpus[:, problem.rows == row].sum(axis=1)
        yield (
            f"{problem.regions[region]} has {f'{capacity:,}' if capacity else 'no'} {name}, but "
            f"the minimums there ask for {needed_gpus:,} "
            f"({_words_by_model(problem, gpus_by_model)}): lower a minimum, or add "
            f"{needed_gpus - capacity:,} {name}."
        )


def _local_shortage(problem: PlanningProblem) -> Iterator[str]:
    """Yield a sentence for each region that lacks GPUs of some types for its own demand."""
    need = local_need_tps(problem)
    for region, name in enumerate(problem.regions):
        capacity = problem.capacity_gpus[region]
        minimum = problem.minimum[:, region] * problem.gpus_per_instance
        shortage = _shortage(problem, need[:, region], capacity, minimum)
        if shortage is None:
            continue
        types, gpus_by_model, available = shortage
        needed_gpus, gpus = int(gpus_by_model.sum()), _type_words(problem, types)
        yield (
            f"{name} needs at least {needed_gpus:,} {gpus} to serve {percent(problem.epsilon)} of "
            f"its own peaks{redundancy_words(problem)} ({_words_by_model(problem, gpus_by_model)}) "
            f"and has {available:,}: add {needed_gpus - available:,}"
            f"{_spot_remedy(problem, types)}, or serve more elsewhere with an epsilon below "
            f"{problem.epsilon:g}."
        )


def _global_shortage(problem: PlanningProblem) -> Iterator[str]:
    """Yield a sentence if all regions together lack GPUs of some types for the joint peaks."""
    capacity = problem.capacity_gpus.sum(axis=0)
    minimum = problem.minimum.sum(axis=1) * problem.gpus_per_instance
    shortage = _shortage(problem, global_need_tps(problem), capacity, minimum)
    if shortage is None:
        return
    types, gpus_by_model, available = shortage
    needed_gpus, gpus = int(gpus_by_model.sum()), _type_words(problem, types)
    if len(problem.regions) == 1:
        needs, peaks, has, where = f"{problem.regions[0]} needs", "peaks", "has", ""
    else:
        needs, peaks = "All regions together need", "joint peaks"
        has, where = "have", " in any region"
    yield (
        f"{needs} at least {needed_gpus:,} {gpus} to serve the {peaks}{redundancy_words(problem)} "
        f"({_words_by_model(problem, gpus_by_model)}) and {has} {available:,}: add "
        f"{needed_gpus - available:,}{where}{_spot_remedy(problem, types)}, or plan for less "
        "demand."
    )


def _maximum_conflicts(problem: PlanningProblem) -> Iterator[str]:
    """Yield a sentence for each local or joint demand that a model cannot serve at its maximums."""
    gpus_each = np.maximum(1, problem.gpus_per_instance)[:, None, :]
    # The most instances that maximums and usable GPUs allow, [model, region, GPU column].
    largest = np.minimum(problem.maximum, problem.usable_gpus[None] // gpus_each)
    served_tps, redundancy = local_served_tps(problem, largest), redundancy_words(problem)
    local_need, joint_need = local_need_tps(problem), global_need_tps(problem)
    for model, region in np.argwhere(served_tps < local_need * (1 - TOLERANCE)):
        replicas = replica_words(int(largest[model, region].sum()))
        yield (
            f"{in_region(problem, model, region)} may grow to {replicas}{redundancy}, serving "
            f"{served_tps[model, region]:,.0f} of the {tokens_words(local_need[model, region])} "
            "it must serve itself. Raise its maximum or the capacity there, or lower epsilon "
            f"below {problem.epsilon:g}."
        )
    for (model,) in np.argwhere(served_tps.sum(axis=1) < joint_need * (1 - TOLERANCE)):
        replicas = replica_words(int(largest[model].sum()))
        yield (
            f"{problem.models[model]} may grow to {replicas} over all regions{redundancy}, serving "
            f"{served_tps[model].sum():,.0f} of its combined peak of "
            f"{tokens_words(joint_need[model])}: raise a maximum or the capacity somewhere."
        )


def _shortage(
    problem: PlanningProblem, need_tps: FloatArray, capacity: IntArray, minimum: IntArray
) -> tuple[tuple[int, ...], IntArray, int] | None:
    """Return the smallest set of GPU types that has too few GPUs for the models bound to it.

    ``need_tps [model]`` is in tokens/s. ``capacity [capacity row]`` and ``minimum [model, GPU
    column]`` are in GPUs. Returns the types (capacity rows), the GPUs needed by model, and the GPUs
    available. None: no shortage.
    """
    for types in nonempty_subsets(len(capacity)):
        in_types = np.isin(problem.rows, types)
        gpus_needed = _needed_gpus(problem, need_tps, in_types, minimum)
        available = int(capacity[list(types)].sum())
        if gpus_needed.sum() > available:
            return types, gpus_needed, available
    return None


def _needed_gpus(
    problem: PlanningProblem, need: FloatArray, in_types: BoolArray, minimum: IntArray
) -> IntArray:
    """Return the GPUs of a set of types that each model bound to it needs, ``[model]``.

    A model is bound to the set, the GPU columns ``in_types``, if it can run on no other type. It
    needs at least the GPUs for its tokens on the most efficient type, and at least its minimums.
    With several sides (prefill and decode), the side that needs most GPUs counts.
    """
    gpus_needed: IntArray = minimum[:, in_types].sum(axis=1)
    for side in role_sides(problem):
        can_run = problem.theta_tps * side.columns > 0  # [l, g]
        is_bound = can_run.any(axis=1) & ~can_run[:, ~in_types].any(axis=1)
        for (model,) in np.argwhere(is_bound & (need > 0)):
            columns = np.flatnonzero(in_types & can_run[model]).tolist()
            fewest = _fewest_gpus(problem, need[model], side, model, columns)
            gpus_needed[model] = max(gpus_needed[model], fewest)
    return gpus_needed


def _fewest_gpus(
    problem: PlanningProblem, need_tps: float, side: Side, model: int, columns: list[int]
) -> int:
    """Return a lower bound on the GPUs that a model needs to serve ``need_tps`` tokens/s.

    ``columns`` are the GPU columns that it may use. The bound is exact for one column in one
    region. It holds for several pools too, because separate pools carry no more than one pool of
    all their instances.
    """
    need_tps *= side.share * (1 - TOLERANCE)  # of the side, such as the prefill columns
    gpus_each = np.maximum(1, problem.gpus_per_instance[model, columns])  # GPUs of an instance
    if len(columns) == 1:
        (column,) = columns
        replicas = fewest_instances(problem, model, column, need_tps, int(side.lost[column]))
        return replicas * int(gpus_each[0])
    common_gpus = int(np.gcd.reduce(gpus_each))  # whole replicas take multiples of it
    gpus_per_tps = (gpus_each / problem.theta_tps[model, columns]).min()
    gpus = int(np.ceil(need_tps * gpus_per_tps / common_gpus)) * common_gpus
    return max(gpus, int(gpus_each.min()))


def nonempty_subsets(types: int) -> Iterator[tuple[int, ...]]:
    """Yield the sets of GPU types to test: all sets, or if many, each type and all together."""
    counts = range(1, types + 1) if types <= SUBSET_TYPES else (1, types)
    for count in counts:
        yield from combinations(range(types), count)


def _words_by_model(problem: PlanningProblem, gpus: IntArray) -> str:
    """Return each model with its ``gpus [model]`` in words, the largest number first."""
    largest_first = np.argsort(-gpus, kind="stable")
    models = [model for model in largest_first if gpus[model]]
    return first_names([f"{problem.models[model]} {gpus[model]:,}" for model in models])


def _type_words(problem: PlanningProblem, types: tuple[int, ...]) -> str:
    """Return the names of GPU types as a list in words."""
    names = [problem.row_names[row] for row in types]
    if len(names) == 1:
        return names[0]
    return "GPUs" if len(names) == len(problem.row_names) else f"GPUs ({' or '.join(names)})"


def _spot_remedy(problem: PlanningProblem, types: tuple[int, ...]) -> str:
    """Return the remedy of a larger spot share, if these GPU types are all owned; else ""."""
    spot = problem.spot
    if spot is None or not spot.any() or spot[np.isin(problem.rows, types)].any():
        return ""
    return f", raise spot_share above {problem.spot_share:g}" if problem.spot_share < 1 else ""
