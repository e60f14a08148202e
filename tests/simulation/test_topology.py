"""The tree of nodes: where things lie, what two nodes share, and how trees are built."""

import numpy as np
import pytest

from bench.topologies import random_topology
from simulation.errors import SimulationError
from simulation.topology import (
    CENTRE,
    KV_SHARE,
    NODE,
    S1,
    S2,
    Shape,
    Topology,
    build_topology,
)


def test_shares_of_bandwidth_fall_with_the_level():
    assert (np.diff(KV_SHARE) <= 0).all()
    assert KV_SHARE[S2] == pytest.approx(0.8)  # seed 003, section 1: about 20% less across switches


def types_under(topology, level):
    under = topology.above(level)
    return [set(topology.gpu[under == group].tolist()) for group in np.unique(under)]


def test_mixed_switches_come_as_the_shape_says():
    shape = Shape(4, 2, 2, 2, mixed_s1=1, mixed_s2=1)
    topology = build_topology(["a", "b"], [("x", shape, [16, 16])], [8, 4])
    assert [len(types) for types in types_under(topology, S1)] == [2, 2, 1, 1, 1, 1, 1, 1]
    assert [len(types) for types in types_under(topology, S2)] == [2, 2, 1, 1]
    assert np.bincount(topology.gpu, topology.gpus).tolist() == [128, 64]


def test_what_does_not_fit_by_blocks_goes_where_there_is_room():
    shape = Shape(1, 2, 2, 2)
    topology = build_topology(["a", "b"], [("x", shape, [3, 5])], [8, 8])
    assert np.bincount(topology.gpu, topology.gpus).tolist() == [24, 40]


def test_a_shape_that_is_too_small_is_refused():
    with pytest.raises(SimulationError, match=r"places for 8 nodes and its GPUs need 9. Add S2"):
        build_topology(["a"], [("x", Shape(1, 2, 2, 2), [9])], [8])


def test_a_network_with_places_past_any_real_one_is_refused():
    shape = Shape(10_000, 10_000, 10_000, 10_000)
    with pytest.raises(SimulationError, match="places for 10,000,000,000,000,000 nodes and"):
        build_topology(["a"], [("x", shape, [9])], [8])


def test_a_rack_lies_under_one_switch():
    with pytest.raises(SimulationError, match="a rack lies under two"):
        Topology(("a",), ("x",), *np.array([[0, 0], [0, 1], [0, 0], [0, 0], [0, 0], [8, 8]]))


@pytest.mark.parametrize("seed", range(5))
def test_random_trees_nest_and_repeat(seed):
    first, two = (random_topology(seed, nodes=150, types=3, centres=2) for _ in range(2))
    assert all((first.above(level) == two.above(level)).all() for level in range(5))
    assert (first.gpu == two.gpu).all()
    for below in range(NODE, CENTRE):
        pairs = set(zip(first.above(below).tolist(), first.above(below + 1).tolist(), strict=True))
        assert len(pairs) == len({child for child, _ in pairs})
