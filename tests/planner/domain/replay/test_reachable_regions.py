"""Whether demand can be served by the ways that are open: Hall's sets against flows."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from planner.domain.replay.replica_loss import region_sets
from simulation.arrays import BoolArray, IntArray


def flows(open_ways: BoolArray, demand: IntArray, carries: IntArray) -> bool:
    """Whether all demand reaches a region that carries it: source, homes, regions, sink."""
    regions = len(demand)
    edges = np.zeros((2 * regions + 2, 2 * regions + 2), np.int32)
    edges[0, 1 : regions + 1] = demand
    edges[1 : regions + 1, regions + 1 : -1] = open_ways * 1_000
    edges[regions + 1 : -1, -1] = carries
    return int(maximum_flow(csr_array(edges), 0, 2 * regions + 1).flow_value) == demand.sum()


@pytest.mark.parametrize("seed", range(60))
def test_demand_is_carried_where_no_set_asks_for_more_than_its_regions_have(seed: int) -> None:
    rng = np.random.default_rng(seed)
    regions = int(rng.integers(1, 6))
    open_ways = (rng.random((regions, regions)) < rng.choice([0.1, 0.3, 0.7])) | np.eye(
        regions, dtype=bool
    )
    homes, into = region_sets(open_ways)
    carried = []
    for _ in range(40):
        demand, carries = rng.integers(0, 10, (2, regions))
        carried.append(bool((homes @ demand <= into @ carries).all()))
        assert carried[-1] == flows(open_ways, demand, carries)
    assert len(set(carried)) == 2


def test_all_ways_open_are_one_set_and_none_a_set_each() -> None:
    homes, into = region_sets(np.ones((7, 7), bool))
    assert homes.tolist() == into.tolist() == [[True] * 7]
    homes, into = region_sets(np.eye(40, dtype=bool))
    assert homes.tolist() == into.tolist() and len(homes) == 40
    assert homes.sum(axis=0).tolist() == [1] * 40


def test_too_many_sets_hold_every_region_to_itself() -> None:
    """Regions that may each send to one hub and to nowhere else share it in any mixture."""
    hub = np.eye(14, dtype=bool)
    hub[:, 0] = True
    homes, into = region_sets(hub)
    assert homes.tolist() == into.tolist() == np.eye(14).tolist()
    few = region_sets(hub[:8, :8])[0]
    assert len(few) == 2**7  # every set of those beside the hub, and none of them
