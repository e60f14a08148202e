"""Packing of models onto GPUs: exact against brute force, and first fit against exact."""

import numpy as np
import pytest

from planner.optimizer.sharing import MOST_EXACT, pack, pack_exact

SEEDS = range(20)


def additive(seed, models=6):
    """Sizes in two dimensions, and whether a set fits a GPU of size 1 in both."""
    sizes = np.random.default_rng(seed).uniform(0.05, 0.7, (models, 2))
    return sizes, lambda group: bool((sizes[list(group)].sum(axis=0) <= 1.0).all())


def partitions(models):
    """Every partition of the models, as lists of groups."""
    if not models:
        yield []
        return
    first, *rest = models
    for smaller in partitions(rest):
        yield [(first,), *smaller]
        for i, group in enumerate(smaller):
            yield [*smaller[:i], tuple(sorted((first, *group))), *smaller[i + 1 :]]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_exact_packing_is_the_best_of_all_partitions(seed):
    _, fits = additive(seed)
    fewest = min(
        len(groups)
        for groups in partitions(list(range(6)))
        if all(len(group) == 1 or fits(group) for group in groups)
    )
    assert len(pack_exact(6, fits)) == fewest


@pytest.mark.parametrize("seed", SEEDS)
def test_first_fit_serves_every_model_once_and_is_near_the_exact_packing(seed):
    sizes, fits = additive(seed, 8)
    groups = pack(sizes.sum(axis=1), fits)
    assert sorted(model for group in groups for model in group) == list(range(8))
    assert all(len(group) == 1 or fits(group) for group in groups)
    exact = pack_exact(8, fits)
    assert len(exact) <= len(groups) <= len(exact) + 1
    assert len(exact) >= np.ceil(sizes.sum(axis=0).max() - 1e-9)


def test_the_exact_packing_has_a_limit():
    with pytest.raises(ValueError, match=str(MOST_EXACT)):
        pack_exact(MOST_EXACT + 1, lambda group: True)
