"""Cut a service into runs of layers, the module level (methods.md B, A8).

An instance has one batch size and one parallelism for all modules, as in CoCoServe. Only the number
of replicas differs between runs of layers, so capacity comes in parts of an instance. A batch
crosses the link between runs of layers: one scatter, one gather.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.provisioning.interference import Demand
from simulation.provisioning.problem import OperatorProblem
from simulation.provisioning.workload import PhaseProblem, pass_seconds

BLOCKS = 8  # runs of layers per instance


def merge_layers(phase: PhaseProblem, blocks: int = BLOCKS) -> PhaseProblem:
    """Return ``phase`` with runs of consecutive layers in place of operators.

    The shares of arithmetic and bandwidth of a run are means over its operators, weighted by time.
    Operators that run once (embedding, output head) form a module at the end.
    """
    problem, demand = phase.problem, phase.demand
    repeated = np.flatnonzero(phase.layers > 1)
    once = np.flatnonzero(phase.layers == 1)
    layers = int(phase.layers.max())
    edges = np.linspace(0, layers, min(blocks, layers) + 1).round().astype(int)
    parts = [(repeated, (b - a) / layers) for a, b in pairwise(edges)]
    names = [f"layer {b}" if b == a + 1 else f"layers {a + 1} to {b}" for a, b in pairwise(edges)]
    if once.size:
        parts.append((once, 1.0))
        names.append("embedding and head")
    # Runs of layers share one array of operators, so compute each path once.
    total = {id(group): _critical_path(problem, group) for group, _ in parts}
    latency = np.stack([share * total[id(group)] for group, share in parts])
    shape = latency.shape

    def of_time(values: FloatArray) -> FloatArray:
        """Return the time-weighted mean of ``values`` per group, over the time of its path."""
        sums = [
            (values[group] * problem.latency_s[group]).sum(axis=0) / total[id(group)]
            for group, _ in parts
        ]
        return np.stack(sums)

    # Kinds of operators in a run, weighted by time over all batches and parallelisms.
    kinds = None
    if demand.kinds is not None:
        weight = problem.latency_s / problem.latency_s.sum(axis=0)
        weight = weight.mean(axis=(1, 2))
        kinds = np.stack([weight[g] @ demand.kinds[g] / weight[g].sum() for g, _ in parts])
    memory = np.stack([share * demand.memory_bytes[group].sum(axis=0) for group, share in parts])
    kv_bytes = np.zeros((shape[0], shape[2]))
    if demand.kept_bytes is not None:
        kv_bytes = np.stack(
            [share * demand.kept_bytes[group].sum(axis=0) for group, share in parts]
        )
    return replace(
        phase,
        problem=replace(
            problem,
            names=tuple(names),
            edges=tuple((v, v + 1) for v in range(shape[0] - 1)),
            latency_s=latency,
            transfer_s=np.broadcast_to(phase.crossing_s, shape).copy(),
        ),
        demand=Demand(
            memory,
            np.minimum(of_time(demand.compute), 1.0),
            np.minimum(of_time(demand.bandwidth), 1.0),
            kv_bytes,
            kinds,
            demand.table,
            None if demand.board is None else np.minimum(of_time(demand.board), 1.0),
        ),
        power=replace(phase.power, above_w=of_time(phase.power.above_w)),
        layers=np.ones(shape[0], np.int64),
        measured=np.stack([of_time(shares) for shares in phase.measured]),
    )


def _critical_path(problem: OperatorProblem, group: IntArray) -> FloatArray:
    """Return the critical path of ``group``; edges skip the other operators."""
    only = np.zeros_like(problem.latency_s)
    only[group] = problem.latency_s[group]
    return pass_seconds(only, problem.edges)
