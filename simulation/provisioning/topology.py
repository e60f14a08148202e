"""Number devices so that those with most traffic between them share a node.

Operators pass tensors over NVLink within a node, and over the network between nodes. Device numbers
define nodes (``number // per_node``), which the replay uses. ``renumber_by_affinity`` only
renumbers devices; it moves no shard.
"""

from dataclasses import replace

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.provisioning.placement import Placement
from simulation.provisioning.problem import OperatorPlan, OperatorProblem

SAME_REPLICA_WEIGHT = (
    1e3  # extra weight over all traffic, to keep shards of one replica on one node
)
MAX_DEVICES = 256  # most devices for which pairs are exchanged
MAX_EXCHANGES = 50


def output_traffic(problem: OperatorProblem, plan: OperatorPlan) -> FloatArray:
    """Return the traffic that each operator sends, ``[V]``, in seconds of link time per second."""
    sent = problem.transfer_s[problem.indices_of(plan.batch, plan.parallel)]
    return np.asarray(problem.rate / plan.batch * sent, np.float64)


def traffic(
    placement: Placement, sent: FloatArray, edges: tuple[tuple[int, int], ...]
) -> FloatArray:
    """Return the traffic between devices, ``[D, D]``, in seconds of link time per second.

    ``sent [V]`` is the traffic that each operator sends (``output_traffic``). Every replica sends
    equally to all replicas of the following operators.
    """
    share_on_device = shares_on_devices(placement, sent.size)
    flow = np.zeros((placement.devices, placement.devices))
    for u, v in edges:
        receivers = sum(1 for sender, _ in edges if sender == u)
        flow += sent[u] / receivers * np.outer(share_on_device[u], share_on_device[v])
    np.fill_diagonal(flow, 0.0)
    return flow + flow.T


def shares_on_devices(placement: Placement, operators: int) -> FloatArray:
    """Return the share of each operator's shards on each device, ``[V, D]``."""
    shards = np.zeros((operators, placement.devices))
    np.add.at(shards, (placement.operator, placement.device), 1.0)
    return np.asarray(shards / shards.sum(axis=1, keepdims=True))


def share_across_nodes(flow: FloatArray, node: IntArray) -> float:
    """Return the share of the traffic ``flow [D, D]`` between devices that leaves a node.

    ``node [D]`` is the node of each device.
    """
    total = float(flow.sum())
    return float(flow[node[:, None] != node].sum()) / total if total > 0 else 0.0


def renumber_by_affinity(
    placement: Placement, sent: FloatArray, edges: tuple[tuple[int, int], ...], per_node: int
) -> Placement:
    """Return ``placement`` with devices renumbered so that less traffic crosses between nodes.

    Nodes are filled one by one, then pairs of devices are exchanged. The traffic between nodes
    never exceeds that of the given order.
    """
    count = placement.devices
    if not per_node < count <= MAX_DEVICES:
        return placement
    flow = traffic(placement, sent, edges)
    same_replica_weight = SAME_REPLICA_WEIGHT * max(float(flow.sum()), 1.0)
    weight = flow + same_replica_weight * _same_replica_mask(placement)
    # An arrangement is the node of each device.
    given = np.arange(count) // per_node
    arrangements = (
        given,
        _exchange_devices(weight, _fill_nodes(weight, per_node)),
        _exchange_devices(weight, given),
    )
    node = min(arrangements, key=lambda arrangement: share_across_nodes(weight, arrangement))
    number = np.empty(count, np.int64)  # new number of each device
    number[np.argsort(node, kind="stable")] = np.arange(count)
    order = np.argsort(number)
    return replace(
        placement,
        device=number[placement.device],
        memory_bytes=placement.memory_bytes[order],
        compute=placement.compute[order],
        bandwidth=placement.bandwidth[order],
    )


def _same_replica_mask(placement: Placement) -> FloatArray:
    """Return 1 for pairs of devices with shards of the same replica, else 0, ``[D, D]``."""
    same_replica = np.zeros((placement.devices, placement.devices))
    # A number for every pair of operator and replica number
    replica = placement.operator * (1 + int(placement.replica.max())) + placement.replica
    for one_replica in np.unique(replica):
        devices = placement.device[replica == one_replica]
        same_replica[np.ix_(devices, devices)] = 1.0
    np.fill_diagonal(same_replica, 0.0)
    return same_replica


def _fill_nodes(weight: FloatArray, per_node: int) -> IntArray:
    """Return the node of each device, by filling one node after the other.

    ``weight [D, D]`` is the traffic between devices. The first device of a node is the one with
    most traffic to devices without a node. Then come those with most traffic to that node.
    """
    count = len(weight)
    node = np.full(count, -1)
    for next_node in range(-(-count // per_node)):
        free = np.flatnonzero(node < 0)
        traffic_to_free = weight[np.ix_(free, free)].sum(axis=1)
        node[free[traffic_to_free.argmax()]] = next_node
        for _ in range(min(per_node, free.size) - 1):
            free = np.flatnonzero(node < 0)
            on_node = np.flatnonzero(node == next_node)
            traffic_to_node = weight[np.ix_(free, on_node)].sum(axis=1)
            node[free[traffic_to_node.argmax()]] = next_node
    return node


def _exchange_devices(weight: FloatArray, node: IntArray) -> IntArray:
    """Return the node of each device after exchanges of pairs between nodes, the best one first.

    Each reduces the traffic between nodes. ``weight [D, D]`` is the traffic between devices.
    ``node [D]`` is the node of each device before.
    """
    node = node.copy()
    devices = np.arange(len(node))
    for _ in range(MAX_EXCHANGES):
        nodes = range(node.max() + 1)
        # [D, nodes] traffic of each device to each node
        to_node = np.stack([weight[:, node == number].sum(axis=1) for number in nodes], axis=1)
        to_own_node = to_node[devices, node]
        to_other_node = to_node[:, node]  # [D, D] of each device to the node of each other device
        after = to_other_node + to_other_node.T  # within nodes, of both devices after the exchange
        # The traffic between the two exchanged devices stays, hence ``- 2.0 * weight``.
        gain = after - to_own_node[:, None] - to_own_node[None, :] - 2.0 * weight
        gain[node[:, None] == node] = 0.0
        first, second = np.unravel_index(gain.argmax(), gain.shape)
        if gain[first, second] <= 1e-12 * weight.sum():
            break
        node[[first, second]] = node[[second, first]]
    return node
