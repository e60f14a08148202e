"""Pack models onto the fewest GPUs, by a test of whether a set of models may share one.

A group is the sorted numbers of the models that share a GPU. The test ``fits(group)`` may replay
requests, so its answers are cached. A single model always gets a GPU.
"""

from collections.abc import Callable
from itertools import combinations

import pulp

from simulation.arrays import FloatArray

Group = tuple[int, ...]
Fits = Callable[[Group], bool]
MOST_EXACT = 10  # models: each subset is tested


def pack(sizes: FloatArray, fits: Fits) -> tuple[Group, ...]:
    """Return groups of models that share a GPU, as few as the first-fit heuristic finds.

    ``fits(group)`` tells whether the models of a group may share a GPU. Models are packed by
    falling and by rising ``sizes [model]``, and the better packing wins. In each, a group is
    dissolved if all its models fit into other groups.
    """
    cached_fits = cache_fits(fits)
    largest_first = sorted(range(len(sizes)), key=lambda model: (-sizes[model], model))
    best: list[Group] = []
    for model_order in (largest_first, largest_first[::-1]):
        groups: list[Group] = []
        for model in model_order:
            if not _join_first(groups, model, cached_fits):
                groups.append((model,))
        groups = _dissolve_groups(groups, cached_fits)
        if not best or len(groups) < len(best):
            best = groups
        if len(best) <= 1:
            break  # no packing is better
    return tuple(sorted(best))


def pack_exact(models: int, fits: Fits) -> tuple[Group, ...]:
    """Return the fewest groups of ``models`` that fit, from an integer program over all subsets.

    Raises ValueError beyond ``MOST_EXACT`` models.
    """
    if models > MOST_EXACT:
        raise ValueError(f"{models} models have too many subsets. Use at most {MOST_EXACT}.")
    groups = [
        group
        for size in range(1, models + 1)
        for group in combinations(range(models), size)
        if size == 1 or fits(group)
    ]
    program = pulp.LpProblem("packing", pulp.LpMinimize)
    is_used = {
        group: program.add_variable(f"group_{i}", cat="Binary") for i, group in enumerate(groups)
    }
    program += pulp.lpSum(is_used.values())
    for model in range(models):
        program += pulp.lpSum(is_used[group] for group in groups if model in group) == 1
    program.solve(pulp.HiGHS(msg=False))
    return tuple(sorted(group for group, used in is_used.items() if used.value() > 0.5))


def cache_fits(fits: Fits) -> Fits:
    """Return ``fits`` with a cache of its answers.

    A group of one model always fits. A group that contains a group which does not fit is not
    tested.
    """
    answers: dict[Group, bool] = {}
    failed_groups: list[set[int]] = []

    def test(group: Group) -> bool:
        """Return whether the models of ``group`` may share a GPU."""
        if len(group) == 1:
            return True
        if group not in answers:
            contains_failed = any(failed.issubset(group) for failed in failed_groups)
            answers[group] = not contains_failed and fits(group)
            if not answers[group]:
                failed_groups.append(set(group))
        return answers[group]

    return test


def _join_first(groups: list[Group], model: int, fits: Fits) -> bool:
    """Add ``model`` to the first of ``groups`` that it fits; return whether there is one."""
    for i, group in enumerate(groups):
        larger = tuple(sorted((*group, model)))
        if fits(larger):
            groups[i] = larger
            return True
    return False


def _dissolve_groups(groups: list[Group], fits: Fits) -> list[Group]:
    """Return ``groups`` after dissolving those whose models all fit into other groups."""
    smallest_first = sorted(groups, key=len)
    for group in smallest_first:
        others = [other for other in groups if other != group]
        if all(_join_first(others, model, fits) for model in group):
            return _dissolve_groups(others, fits)
    return groups
