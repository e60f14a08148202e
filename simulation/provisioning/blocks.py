"""Split a service into runs of layers (modules) that can have different replica counts.

All modules of a service have one batch size and one parallelism, as in CoCoServe. Only the number
of copies differs between them, so capacity can grow by less than a whole replica. A batch crosses
the link between two modules: one scatter, one gather.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.provisioning.interference import Demand
from simulation.provisioning.problem import OperatorProblem
from simulation.provisioning.workload import PhaseProblem

BLOCKS = 8  # runs of layers per instance


def merge_layers(phase: PhaseProblem, blocks: int = BLOCKS) -> PhaseProblem:
    """Return ``phase`` with runs of consecutive layers in place of operators.

    The layers are cut into ``blocks`` runs of about equal length. The shares of arithmetic and
    bandwidth of a run are means over its operators, weighted by time. Operators that run once
    (embedding, output head) form a run at the end.
    """
    problem, demand = phase.problem, phase.demand
    names, modules = _modules(phase, blocks)
    path_s = [_critical_path_s(problem, operators) for operators, _ in modules]
    latency = np.stack(
        [share * seconds for (_, share), seconds in zip(modules, path_s, strict=True)]
    )
    shape = latency.shape

    def mean_over_time(values: FloatArray) -> FloatArray:
        """Return the mean of ``values [V, B, P]`` over each run's operators, weighted by time.

        A weight is the operator's time over that of the run's critical path. The weights exceed 1
        in sum if operators run in parallel branches.
        """
        weighted = values * problem.latency_s
        return np.stack(
            [weighted[v].sum(axis=0) / s for (v, _), s in zip(modules, path_s, strict=True)]
        )

    # Kinds of operators in a module, weighted by time over all batches and parallelisms.
    kinds = None
    if demand.kinds is not None:
        weight = problem.latency_s / problem.latency_s.sum(axis=0)
        weight = weight.mean(axis=(1, 2))
        kinds = np.stack([weight[v] @ demand.kinds[v] / weight[v].sum() for v, _ in modules])
    memory = np.stack([share * demand.memory_bytes[v].sum(axis=0) for v, share in modules])
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
            np.minimum(mean_over_time(demand.compute), 1.0),
            np.minimum(mean_over_time(demand.bandwidth), 1.0),
            np.stack([share * demand.kv_bytes[v].sum(axis=0) for v, share in modules]),
            kinds,
            demand.table,
            np.minimum(mean_over_time(demand.board), 1.0),
        ),
        power=replace(phase.power, above_w=mean_over_time(phase.power.above_w)),
        layers=np.ones(shape[0], np.int64),
        measured=np.stack([mean_over_time(shares) for shares in phase.measured]),
    )


def _modules(phase: PhaseProblem, blocks: int) -> tuple[list[str], list[tuple[IntArray, float]]]:
    """Return the name of each run, and for each the indices of its operators and its layers' share.

    ``blocks`` is the number of runs. One more run has the operators that run once.
    """
    repeated = np.flatnonzero(phase.layers > 1)
    once = np.flatnonzero(phase.layers == 1)
    layers = int(phase.layers.max())
    edges = np.linspace(0, layers, min(blocks, layers) + 1).round().astype(int)
    modules = [(repeated, (b - a) / layers) for a, b in pairwise(edges)]
    names = [f"layer {b}" if b == a + 1 else f"layers {a + 1} to {b}" for a, b in pairwise(edges)]
    if once.size:
        modules.append((once, 1.0))
        names.append("embedding and head")
    return names, modules


def _critical_path_s(problem: OperatorProblem, operators: IntArray) -> FloatArray:
    """Return the seconds of the critical path through ``operators`` only, ``[B, P]``."""
    ends = np.zeros_like(problem.latency_s)
    for v in range(len(ends)):  # in topological order
        ends_before = [ends[u] for u, w in problem.edges if w == v]
        if ends_before:
            ends[v] = np.max(ends_before, axis=0)
        if v in operators:
            ends[v] += problem.latency_s[v]
    return np.asarray(ends.max(axis=0), np.float64)
