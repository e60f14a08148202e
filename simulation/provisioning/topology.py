"""Which devices stand on one node (A9): what operators hand to each other crosses NVLink within a
node and the network between nodes, so devices that hand on most to each other stand together.

Placement counts devices; their numbers say nodes (``number // per_node``), which the replay goes
by. ``by_affinity`` numbers them anew and moves nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.provisioning.placement import Placement
from simulation.provisioning.problem import OperatorPlan, OperatorProblem

APART = 1e3  # times all that is handed on: shards of one replica are not parted for it
MOST = 256  # devices of which pairs are looked at
ROUNDS = 50


def handed_on(problem: OperatorProblem, plan: OperatorPlan) -> FloatArray:
    """Seconds on a link per second of each operator's batches, ``[V]``."""
    sent = problem.transfer_s[problem.chosen(plan.batch, plan.parallel)]
    return np.asarray(problem.rate / plan.batch * sent, np.float64)


def traffic(
    placement: Placement, handed: FloatArray, edges: tuple[tuple[int, int], ...]
) -> FloatArray:
    """Between devices, ``[D, D]``: what operators hand on (``handed[v]``, seconds on a link per
    second), every replica to every one of the next, as requests do."""
    where = np.zeros((handed.size, placement.devices))
    np.add.at(where, (placement.operator, placement.device), 1.0)
    where /= where.sum(axis=1, keepdims=True)
    flow = np.zeros((placement.devices, placement.devices))
    for u, v in edges:
        after = sum(1 for before, _ in edges if before == u)
        flow += handed[u] / after * np.outer(where[u], where[v])
    np.fill_diagonal(flow, 0.0)
    return flow + flow.T


def across(flow: FloatArray, node: IntArray) -> float:
    """Share of the traffic that goes from node to node."""
    total = float(flow.sum())
    return float(flow[node[:, None] != node].sum()) / total if total > 0 else 0.0


def by_affinity(
    placement: Placement,
    handed: FloatArray,
    edges: tuple[tuple[int, int], ...],
    per_node: int,
) -> Placement:
    """``placement`` with its devices on the nodes between which least is handed on that filling
    nodes one by one and exchanging pairs finds; never more than as they stood."""
    count = placement.devices
    if not per_node < count <= MOST:
        return placement
    flow = traffic(placement, handed, edges)
    weight = flow + APART * max(float(flow.sum()), 1.0) * _together(placement)
    as_is = np.arange(count) // per_node
    filled = _exchanged(weight, _filled(weight, per_node))
    stood = _exchanged(weight, as_is)
    node = min((as_is, filled, stood), key=lambda arranged: across(weight, arranged))
    number = np.empty(count, np.int64)
    number[np.argsort(node, kind="stable")] = np.arange(count)
    order = np.argsort(number)
    return replace(
        placement,
        device=number[placement.device],
        memory_bytes=placement.memory_bytes[order],
        compute=placement.compute[order],
        bandwidth=placement.bandwidth[order],
    )


def _together(placement: Placement) -> FloatArray:
    """1 between devices that hold shards of one replica."""
    joined = np.zeros((placement.devices, placement.devices))
    replica = placement.operator * (1 + int(placement.replica.max())) + placement.replica
    for instance in np.unique(replica):
        devices = placement.device[replica == instance]
        joined[np.ix_(devices, devices)] = 1.0
    np.fill_diagonal(joined, 0.0)
    return joined


def _filled(weight: FloatArray, per_node: int) -> IntArray:
    """Node by node: the device with most traffic left, then those with most to the node."""
    count = len(weight)
    node = np.full(count, -1)
    for k in range(-(-count // per_node)):
        free = np.flatnonzero(node < 0)
        first = free[weight[np.ix_(free, free)].sum(axis=1).argmax()]
        node[first] = k
        for _ in range(min(per_node, free.size) - 1):
            free = np.flatnonzero(node < 0)
            node[free[weight[np.ix_(free, np.flatnonzero(node == k))].sum(axis=1).argmax()]] = k
    return node


def _exchanged(weight: FloatArray, node: IntArray) -> IntArray:
    """Pairs of devices change nodes while that leaves less between nodes, the best pair first."""
    node = node.copy()
    rows = np.arange(len(node))
    for _ in range(ROUNDS):
        to_node = np.stack(
            [weight[:, node == k].sum(axis=1) for k in range(node.max() + 1)], axis=1
        )
        now = to_node[rows, node]
        there = to_node[:, node]  # of each device to the node of each other
        gain = there + there.T - now[:, None] - now[None, :] - 2.0 * weight
        gain[node[:, None] == node] = 0.0
        i, j = np.unravel_index(gain.argmax(), gain.shape)
        if gain[i, j] <= 1e-12 * weight.sum():
            break
        node[i], node[j] = node[j], node[i]
    return node
