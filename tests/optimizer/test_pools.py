"""C(n), what instances carry together, in every way to plan: against counting and by its laws."""

from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer.pools import (
    CapacityCurves,
    capacity_curve,
    carried_by_pools,
    fewest_instances,
    linear_pieces,
)
from planner.optimizer.program.cuts import facets
from tests.optimizer.horizon.toys import random_horizon
from tests.optimizer.problems import (
    one_region,
    pools_by_hand,
    random_columns,
    with_pools,
)


def carried(instance, model, column, count):
    curves = CapacityCurves.from_problem(instance)
    return float(curves.capacity_tps(*map(np.array, (model, column, count))))


def horizon(seed):
    toy = random_horizon(seed)
    pooled = with_pools(toy.first, seed).pool_tps
    return replace(toy, windows=tuple(replace(w, pool_tps=pooled) for w in toy.windows))


@pytest.mark.parametrize("seed", range(20))
def test_a_curve_is_what_it_says(seed):
    instance = one_region(seed)
    target = np.random.default_rng(seed).integers(0, 9, (4, *instance.current.shape))
    by_hand = pools_by_hand(instance, target)
    np.testing.assert_allclose(carried_by_pools(instance, target), by_hand)
    for place in np.ndindex(target.shape):
        m, g, n = place[1], place[3], int(target[place])
        if instance.theta_tps[m, g] == 0:
            continue
        assert carried(instance, m, g, n) == pytest.approx(by_hand[place])
        assert capacity_curve(instance, m, g, n)[-1] == pytest.approx(by_hand[place])
        need = float(by_hand[place]) - 1e-6
        least = fewest_instances(instance, m, g, need)
        assert carried(instance, m, g, least) >= need
        assert least == 0 or carried(instance, m, g, least - 1) < need
        for tps in (float(by_hand[place]), float(by_hand[place]) + 1e-6, need):
            curves = CapacityCurves.from_problem(instance)
            instances = int(curves.fully_used(*map(np.array, (m, g, max(0.0, tps)))))
            assert carried(instance, m, g, instances) <= max(0.0, tps)
            assert carried(instance, m, g, instances + 1) > tps * (1 - 1e-12)  # but for rounding


def test_a_straight_curve_is_one_stretch_and_that_of_sizing_has_two_runs():
    assert len(linear_pieces(np.arange(9) * 3.0, 100.0).slope) == 1
    measured = np.array([0.0, 3.4, 10.6, 17.2, 23.6])  # then less again for each
    cut_pieces = linear_pieces(measured, 100.0)
    assert cut_pieces.group.tolist() == [0, 1, 1, 1]
    assert cut_pieces.first.tolist() == [0, 1, 2, 3]
    short = linear_pieces(measured, 12.0)
    assert short.length.sum() == 3
    assert (short.slope * short.length).sum() == pytest.approx(12.0)


@pytest.mark.parametrize("seed", range(12))
def test_facets_cut_off_no_whole_cover_of_a_bent_curve(seed):
    instance = with_pools(random_columns(seed), seed)
    able = np.flatnonzero(instance.theta_tps[0] > 0)[:3].tolist()
    need = 170.0
    curves = [capacity_curve(instance, 0, g, fewest_instances(instance, 0, g, need)) for g in able]
    facets_ = facets(tuple(instance.theta_tps[0, able]), need, tuple(map(tuple, curves)))
    grid = np.stack(np.meshgrid(*(range(len(c) + 1) for c in curves), indexing="ij"), -1)
    points = grid.reshape(-1, len(able))
    curves = CapacityCurves.from_problem(instance)
    held = sum(
        curves.capacity_tps(np.zeros(len(points), np.int64), g, points[:, column])
        for column, g in enumerate(able)
    )
    points = points[held >= need]
    assert np.all(points @ facets_[:, :-1].T >= facets_[:, -1] - 1e-9)
