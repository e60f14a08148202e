"""Needs covered by the cheapest instances there is room for."""

import numpy as np
import pytest

from planner.optimizer.covering import Covering, Needs
from planner.optimizer.figures import gpus_used
from tests.optimizer.problems import (
    bare_problem,
    random_columns,
    random_problem,
    with_pools,
    with_spare,
)

KINDS = {
    "plain": random_problem,
    "columns": random_columns,
    "pools": lambda seed: with_pools(random_columns(seed), seed),
    "spare": lambda seed: with_spare(random_problem(seed), seed),
}


@pytest.mark.parametrize("kind", KINDS)
def test_regions_side_by_side_are_covered_as_one_after_the_other(kind):
    for seed in range(20):
        instance = KINDS[kind](seed)
        rng = np.random.default_rng(seed)
        regions = np.arange(len(instance.regions))
        models = rng.integers(len(instance.models), size=len(regions))
        tps = rng.uniform(0, 2, len(regions)) * instance.demand_tps.max()
        together, apart = Covering(instance), Covering(instance)
        left = together.cover(Needs(models, regions[:, None], tps))
        for i in rng.permutation(len(regions)):
            alone = apart.cover(Needs.one(int(models[i]), [int(regions[i])], float(tps[i])))
            assert alone[0] == pytest.approx(left[i])
        np.testing.assert_array_equal(together.target, apart.target)
        np.testing.assert_array_equal(together.free, apart.free)
        assert (together.target <= instance.maximum).all()
        free = instance.capacity_gpus - gpus_used(instance, together.target)
        np.testing.assert_array_equal(together.free, free)


def test_of_one_that_finishes_and_one_that_is_cheap_by_the_token_the_cheaper_whole_is_taken():
    """A large GPU for $4 that serves 10 where 2 are needed, a small one for $1 that serves 2."""
    instance = bare_problem(
        ("m",),
        ("r",),
        ("large", "small"),
        theta_tps=np.array([[10.0, 2.0]]),
        usd_per_hour=np.array([[[4.0, 1.0]]]),
        demand_tps=np.zeros((1, 1, 1)),
        capacity_gpus=np.full((1, 2), 9),
        maximum=np.full((1, 1, 2), 9),
    )
    for need, held in ((2.0, [0, 1]), (10.0, [1, 0]), (12.0, [1, 1]), (200.0, [9, 9])):
        covering = Covering(instance)
        left = covering.cover(Needs.one(0, [0], need))
        assert covering.target[0, 0].tolist() == held
        assert left[0] == max(0.0, need - 108.0)
