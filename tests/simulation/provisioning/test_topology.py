"""Which devices stand on one node: every way of it on small cases, and laws."""

from itertools import permutations

import numpy as np
import pytest

from simulation.provisioning.placement import Placement
from simulation.provisioning.topology import renumber_by_affinity, share_across_nodes, traffic

CHAIN = ((0, 1), (1, 2), (2, 3))


def placed(operator: list[int], replica: list[int], device: list[int]) -> Placement:
    count = max(device) + 1
    ends = np.arange(count, dtype=float)
    return Placement(
        count, np.array(operator), np.array(replica), np.array(device), ends, ends,
        ends, np.ones(4), 1.0, True,
    )  # fmt: skip


def test_operators_that_hand_on_most_stand_together() -> None:
    """Four operators on four devices, two to a node. The second hands on ten times what others do:
    it stands with the third, which leaves 2 of 12 between nodes instead of 10."""
    placement, handed = (
        placed([0, 1, 2, 3], [0, 0, 0, 0], [0, 1, 2, 3]),
        np.array([1.0, 10.0, 1.0, 0.0]),
    )
    nodes = np.arange(4) // 2
    assert share_across_nodes(traffic(placement, handed, CHAIN), nodes) == pytest.approx(10 / 12)
    near = renumber_by_affinity(placement, handed, CHAIN, 2)
    assert share_across_nodes(traffic(near, handed, CHAIN), nodes) == pytest.approx(2 / 12)
    # What a device holds goes with it.
    assert (
        near.memory_bytes[near.device].tolist() == placement.memory_bytes[placement.device].tolist()
    )
    assert renumber_by_affinity(placement, handed, CHAIN, 4) is placement


@pytest.mark.parametrize("seed", range(12))
def test_no_numbering_leaves_less_between_nodes(seed: int) -> None:
    """Six devices, two or three to a node, all numberings."""
    rng = np.random.default_rng(seed)
    device = np.r_[rng.permutation(6), rng.integers(0, 6, 6)]
    operator = np.sort(rng.integers(0, 4, 12))
    operator[[0, 3, 6, 9]] = range(4)
    placement = placed(operator.tolist(), list(range(12)), device.tolist())
    handed, per_node = rng.uniform(0.1, 5.0, 4), 2 + seed % 2
    flow, nodes = traffic(placement, handed, CHAIN), np.arange(6) // per_node
    best = min(share_across_nodes(flow, nodes[list(order)]) for order in permutations(range(6)))
    near = traffic(renumber_by_affinity(placement, handed, CHAIN, per_node), handed, CHAIN)
    assert share_across_nodes(near, nodes) <= share_across_nodes(flow, nodes) + 1e-12
    assert share_across_nodes(near, nodes) <= best + 0.03


def test_shards_of_a_replica_are_not_parted() -> None:
    placement = placed([0, 0, 1, 1, 2, 3], [0, 0, 0, 0, 0, 0], [0, 2, 1, 3, 0, 3])
    near = renumber_by_affinity(placement, np.array([0.1, 9.0, 0.1, 0.0]), CHAIN, 2)
    for pair in (near.device[:2], near.device[2:4]):
        assert pair[0] // 2 == pair[1] // 2
