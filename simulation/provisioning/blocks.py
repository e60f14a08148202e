"""Split a service into runs of layers (modules) that can have different replica counts.

All modules of a service have one batch size and one parallelism, as in CoCoServe. Only the number
of copies differs between them, so capacity can grow by less than a whole replica. A batch crosses
the link between two modules: one scatter, one gather.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from simulation.arrays import BoolArray, FloatArray
from simulation.provisioning.interference import Demand
from simulation.provisioning.problem import OperatorProblem
from simulation.provisioning.workload import PhaseProblem

BLOCKS = 8  # runs of layers per instance


def merge_layers(phase: PhaseProblem) -> PhaseProblem:
    """Return ``phase`` with runs of consecutive layers in place of operators.

    The layers are cut into ``BLOCKS`` runs of about equal length. The shares of arithmetic and
    bandwidth of a run are means over its operators, weighted by time. Operators that run once
    (embedding, output head) form a run at the end.
    """
    problem, demand = phase.problem, phase.demand
    names, share, in_run = _runs_of_layers(phase)
    share = share[:, None, None]
    path_s = np.stack([_critical_path_s(problem, members) for members in in_run])

    def sum_over_run(values: FloatArray) -> FloatArray:
        """Return the sum of ``values [V, ...]`` over the operators of each run, ``[M, ...]``."""
        return np.asarray(np.einsum("mv,v...->m...", in_run.astype(np.float64), values))

    def mean_over_time(values: FloatArray) -> FloatArray:
        """Return the mean of ``values [V, B, P]`` over each run's operators, weighted by time.

        A weight is the operator's time over that of the run's critical path. The weights exceed 1
        in sum if operators run in parallel branches.
        """
        return sum_over_run(values * problem.latency_s) / path_s

    kinds = None
    if demand.kinds is not None:
        # Weighted by the share of time, as the mean over all batches and parallelisms
        weight = (problem.latency_s / problem.latency_s.sum(axis=0)).mean(axis=(1, 2))
        kinds = sum_over_run(weight[:, None] * demand.kinds) / sum_over_run(weight)[:, None]
    return replace(
        phase,
        problem=replace(
            problem,
            names=tuple(names),
            edges=tuple((m, m + 1) for m in range(len(names) - 1)),
            latency_s=share * path_s,
            transfer_s=np.broadcast_to(phase.crossing_s, path_s.shape).copy(),
        ),
        demand=Demand(
            share * sum_over_run(demand.memory_bytes),
            np.minimum(mean_over_time(demand.compute), 1.0),
            np.minimum(mean_over_time(demand.bandwidth), 1.0),
            share[:, 0] * sum_over_run(demand.kv_bytes),
            kinds,
            demand.table,
            np.minimum(mean_over_time(demand.board), 1.0),
        ),
        power=replace(phase.power, above_w=mean_over_time(phase.power.above_w)),
        layers=np.ones(len(names), np.int64),
        measured=np.stack([mean_over_time(shares) for shares in phase.measured]),
    )


def _runs_of_layers(phase: PhaseProblem) -> tuple[list[str], FloatArray, BoolArray]:
    """Return the names of M runs, the share of layers in each, and which operators it has.

    The last is a mask ``[M, V]``. Operators that run once are a run of their own.
    """
    layers = int(phase.layers.max())
    edges = np.linspace(0, layers, min(BLOCKS, layers) + 1).round().astype(int)
    names = [f"layer {b}" if b == a + 1 else f"layers {a + 1} to {b}" for a, b in pairwise(edges)]
    share, in_run = list(np.diff(edges) / layers), [phase.layers > 1] * len(names)
    if (phase.layers == 1).any():
        names.append("embedding and head")
        share.append(1.0)
        in_run.append(phase.layers == 1)
    return names, np.array(share), np.array(in_run)


def _critical_path_s(problem: OperatorProblem, members: BoolArray) -> FloatArray:
    """Return the seconds of the critical path through ``members [V]`` only, ``[B, P]``."""
    ends = np.zeros_like(problem.latency_s)
    for v in range(len(ends)):  # in topological order
        ends_before = [ends[u] for u, w in problem.edges if w == v]
        if ends_before:
            ends[v] = np.max(ends_before, axis=0)
        if members[v]:
            ends[v] += problem.latency_s[v]
    return np.asarray(ends.max(axis=0), np.float64)
