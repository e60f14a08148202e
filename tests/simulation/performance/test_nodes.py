"""Collectives that reach other nodes: what crosses the network, and what stays within a node."""

from dataclasses import replace

import numpy as np
import pytest

from planner.inputs import catalogue
from simulation.performance.efficiency import transfer_s
from simulation.performance.graph import operator_graph
from simulation.performance.specs import Arrangement
from simulation.performance.work import Collective

H100 = catalogue.gpu("H100-SXM")  # 8 of a server: 450 GB/s to each other, 50 GB/s to other servers
MESSAGE = np.array([1e9])
RING = Collective(
    name="ring", after=(), count=1, axis="tokens", kind="all_reduce", gpus=16, width=1.0
)


def test_a_ring_crosses_a_node_s_boundary_over_all_its_links_at_once() -> None:
    """NCCL measures about the bus bandwidth of one node on two with a 400 Gb/s link per GPU."""
    link, network = H100.link_bytes_s or 0.0, H100.network_bytes_s or 0.0
    by_hand = 1e9 * 2.0 * 15 / 16 / min(link, 8 * network)
    assert transfer_s(RING, MESSAGE, H100)[0] == pytest.approx(by_hand)
    inside = replace(RING, gpus=8)
    assert transfer_s(inside, MESSAGE, H100)[0] == pytest.approx(1e9 * 2.0 * 7 / 8 / link)


@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_a_row_crosses_once_for_all_its_experts_of_a_node(nodes: int) -> None:
    """Against counting: of 8 experts drawn from all ranks, the other nodes that have one."""
    where = Arrangement(attention_dp=8 * nodes, moe_ep=8 * nodes)
    graph = operator_graph(catalogue.shape("deepseek-v3"), where)
    (dispatch,) = [op for op in graph.operators if op.name == "dispatch"]
    assert isinstance(dispatch, Collective)
    drawn = np.random.default_rng(1).integers(nodes, size=(20_000, 8))
    others = [np.unique(row[row > 0]).size for row in drawn]
    copies = dispatch.leaving(8) * dispatch.width / dispatch.copy
    assert copies == pytest.approx(np.mean(others), rel=0.02)
    plain = replace(dispatch, chosen=0)  # of every copy of its own, those to other nodes
    assert plain.leaving(8) == pytest.approx(1.0 - 1.0 / nodes) and plain.leaving(8) < 1.0
    assert dispatch.leaving(8) < plain.leaving(8)
