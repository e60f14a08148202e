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
from simulation.arrays import FloatArray, IntArray

# With more GPU types, only single types and all together: subsets double with each type.
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
    """Return a sentence on the demand that a target leaves unserved and the caps that it exceeds.

    It is "" if there are none.
    """
    served = local_served_tps(problem, target)
    local = local_need_tps(problem) * (1 - TOLERANCE) - served
    total = global_need_tps(problem) * (1 - TOLERANCE) - served.sum(axis=1)
    short = [
        f"{in_region(problem, model, region)} {tokens_words(local[model, region])}"
        for model, region in np.argwhere(local > 0)
    ]
    short += [
        f"{problem.models[model]} overall {tokens_words(total[model])}"
        for (model,) in np.argwhere(total > 0)
    ]
    for cap in caps(problem):
        used = cap_use(problem, target, cap)
        if used > cap_limit(cap):  # the limit with its tolerance
            short.append(f"{cap_words(cap.family, used - cap.limit)} beyond the limit")
    if not short:
        return ""
    return (
        "The solver hit its time limit. The greedy plan leaves uncovered: "
        f"{first_names(short)}. Allow more time, or add capacity."
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
    for region, gpu in np.argwhere(least_gpus > problem.capacity_gpus):
        capacity = int(problem.capacity_gpus[region, gpu])
        needed_gpus = int(least_gpus[region, gpu])
        inside = problem.rows == gpu
        name = problem.row_names[gpu]
        gpus = problem.minimum[:, region] * problem.gpus_per_instance  # [l, g]
        parts = gpus[:, inside].sum(axis=1)  # of each model
        yield (
            f"{problem.regions[region]} has {_count_words(capacity, name)}, but the minimums "
            f"there ask for {needed_gpus:,} ({_words_by_model(problem, parts)}): lower a minimum, "
            "or add "
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
        types, parts, available = shortage
        needed_gpus, gpus = int(parts.sum()), _type_words(problem, types)
        yield (
            f"{name} needs at least {needed_gpus:,} {gpus} to serve {percent(problem.epsilon)} of "
            "its own "
            f"peaks{redundancy_words(problem)} ({_words_by_model(problem, parts)}) and has "
            f"{available:,}: "
            f"add {needed_gpus - available:,}{_spot_remedy(problem, types)}, or serve more "
            f"elsewhere with an epsilon below {problem.epsilon:g}."
        )


def _global_shortage(problem: PlanningProblem) -> Iterator[str]:
    """Yield a sentence if all regions together lack GPUs of some types for the joint peaks."""
    capacity = problem.capacity_gpus.sum(axis=0)
    minimum = problem.minimum.sum(axis=1) * problem.gpus_per_instance
    shortage = _shortage(problem, global_need_tps(problem), capacity, minimum)
    if shortage is None:
        return
    types, parts, available = shortage
    needed_gpus, gpus = int(parts.sum()), _type_words(problem, types)
    single_region = len(problem.regions) == 1
    needs = f"{problem.regions[0]} needs" if single_region else "All regions together need"
    yield (
        f"{needs} at least {needed_gpus:,} {gpus} to serve the "
        f"{'' if single_region else 'joint '}peaks"
        f"{redundancy_words(problem)} ({_words_by_model(problem, parts)}) and "
        f"{'has' if single_region else 'have'} "
        f"{available:,}: add "
        f"{needed_gpus - available:,}{'' if single_region else ' in any region'}"
        f"{_spot_remedy(problem, types)}, or plan for less demand."
    )


def _maximum_conflicts(problem: PlanningProblem) -> Iterator[str]:
    """Yield a sentence for each local or joint demand that a model cannot serve at its maximums."""
    size = np.maximum(1, problem.gpus_per_instance)[:, None, :]
    largest = np.minimum(problem.maximum, problem.room[None] // size)
    served = local_served_tps(problem, largest)
    local, total = local_need_tps(problem), global_need_tps(problem)
    for model, region in np.argwhere(served < local * (1 - TOLERANCE)):
        yield (
            f"{in_region(problem, model, region)} may grow to "
            f"{replica_words(int(largest[model, region].sum()))}{redundancy_words(problem)}, "
            "serving "
            f"{served[model, region]:,.0f} of the {tokens_words(local[model, region])} it must "
            "serve "
            f"itself. Raise its maximum or the capacity there, or lower epsilon below "
            f"{problem.epsilon:g}."
        )
    for (model,) in np.argwhere(served.sum(axis=1) < total * (1 - TOLERANCE)):
        yield (
            f"{problem.models[model]} may grow to {replica_words(int(largest[model].sum()))} "
            "over all "
            f"regions{redundancy_words(problem)}, serving {served[model].sum():,.0f} of its joint "
            "peak of "
            f"{tokens_words(total[model])}: raise a maximum or the capacity somewhere."
        )


def _shortage(
    problem: PlanningProblem, need: FloatArray, capacity: IntArray, minimum: IntArray
) -> tuple[tuple[int, ...], IntArray, int] | None:
    """Return the smallest set of GPU types whose models need more GPUs than there are.

    Models of a set are those that run on no other type. On the types of the set they need at least
    the GPUs for their tokens on the most efficient type, and at least their minimums. With several
    sides (prefill and decode), the side that needs most GPUs counts.

    ``need [model]`` is in tokens/s. ``capacity [capacity row]`` and ``minimum [model, GPU column]``
    are in GPUs. Returns the types, the GPUs needed by model, and the GPUs available. None: no
    shortage.
    """
    gpus_of_instance = np.maximum(1, problem.gpus_per_instance)
    for types in _subsets(len(capacity)):
        inside = np.isin(problem.rows, types)
        gpus_needed: IntArray = minimum[:, inside].sum(axis=1)
        for side in role_sides(problem):
            can_run = problem.theta_tps * side.columns > 0  # [l, g]
            is_bound = can_run.any(axis=1) & ~can_run[:, ~inside].any(axis=1)
            for (model,) in np.argwhere(is_bound & (need > 0)):
                usable_types = np.flatnonzero(inside & can_run[model]).tolist()
                needed_gpus = _fewest_gpus(
                    problem, need[model], side, gpus_of_instance, model, usable_types
                )
                gpus_needed[model] = max(gpus_needed[model], needed_gpus)
        available = int(capacity[list(types)].sum())
        if gpus_needed.sum() > available:
            return types, gpus_needed, available
    return None


def _fewest_gpus(
    problem: PlanningProblem,
    need: float,
    side: Side,
    size: IntArray,
    model: int,
    usable_types: list[int],
) -> int:
    """Return a lower bound on the GPUs of ``usable_types`` that serve ``need`` tokens/s.

    The bound is exact for one type in one region. With several pools it stays a bound, because
    separate pools carry no more than one pool of all their instances.
    """
    need *= side.share * (1 - TOLERANCE)
    if len(usable_types) == 1:
        (column,) = usable_types
        replicas = fewest_instances(problem, model, column, need, int(side.lost[column]))
        return replicas * int(size[model, column])
    sizes = size[model, usable_types]
    step = int(np.gcd.reduce(sizes))  # whole replicas take multiples of it
    per_token = (sizes / problem.theta_tps[model, usable_types]).min()
    return max(int(np.ceil(need * per_token / step)) * step, int(sizes.min()))


def _subsets(types: int) -> Iterator[tuple[int, ...]]:
    """Yield the sets of GPU types to test: all sets, or if many, each type and all together."""
    counts = range(1, types + 1) if types <= SUBSET_TYPES else (1, types)
    for count in counts:
        yield from combinations(range(types), count)


def _words_by_model(problem: PlanningProblem, parts: IntArray) -> str:
    """Return the GPUs of each model, ``parts [model]``, with its name, the largest first."""
    order = np.argsort(-parts, kind="stable")
    return first_names(
        [f"{problem.models[model]} {parts[model]:,}" for model in order if parts[model]]
    )


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


def _count_words(count: int, gpu: str) -> str:
    return f"{count:,} {gpu}" if count else f"no {gpu}"
