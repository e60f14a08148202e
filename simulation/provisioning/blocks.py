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

RUNS_OF_LAYERS = 8  # per replica


def merge_layers(phase: PhaseProblem) -> PhaseProblem:
    """Return ``phase`` with runs of consecutive layers in place of operators.

    The layers are cut into ``RUNS_OF_LAYERS`` runs of about equal length. The shares of arithmetic
    and bandwidth of a run are means over its operators, weighted by time. Operators that run once
    (embedding, output head) form a run at the end.
    """
    problem, demand = phase.problem, phase.demand
    # M runs of V operators; B batches, P parallelisms
    names, layer_share, run_has_operator = _runs_of_layers(phase)
    scale = layer_share[:, None, None]  # [M, 1, 1], for arrays [M, B, P]
    path_s = np.stack([_critical_path_s(problem, operators) for operators in run_has_operator])

    def sum_over_run(values: FloatArray) -> FloatArray:
        """Return the sum of ``values [V, ...]`` over the operators of each run, ``[M, ...]``."""
        mask = run_has_operator.astype(np.float64)  # [M, V]
        return np.asarray(np.einsum("mv,v...->m...", mask, values))

    def mean_over_time(values: FloatArray) -> FloatArray:
        """Return the mean of ``values [V, B, P]`` over each run's operators, weighted by time.

        A weight is the operator's time over that of the run's critical path. The weights exceed 1
        in sum if operators run in parallel branches.
        """
        return sum_over_run(values * problem.latency_s) / path_s

    kinds = None
    if demand.kinds is not None:
        # [V] mean share of an operator's time over all batches and parallelisms
        weight = (problem.latency_s / problem.latency_s.sum(axis=0)).mean(axis=(1, 2))
        kinds = sum_over_run(weight[:, None] * demand.kinds) / sum_over_run(weight)[:, None]
    return replace(
        phase,
        problem=replace(
            problem,
            names=tuple(names),
            edges=tuple((m, m + 1) for m in range(len(names) - 1)),
            latency_s=scale * path_s,
            transfer_s=np.broadcast_to(phase.crossing_s, path_s.shape).copy(),
        ),
        demand=Demand(
            memory_bytes=scale * sum_over_run(demand.memory_bytes),
            compute=np.minimum(mean_over_time(demand.compute), 1.0),
            bandwidth=np.minimum(mean_over_time(demand.bandwidth), 1.0),
            kv_bytes=layer_share[:, None] * sum_over_run(demand.kv_bytes),  # [M, P]
            kinds=kinds,
            table=demand.table,
            board=np.minimum(mean_over_time(demand.board), 1.0),
        ),
        power=replace(phase.power, above_w=mean_over_time(phase.power.above_w)),
        layers=np.ones(len(names), np.int64),
        measured=np.stack([mean_over_time(shares) for shares in phase.measured]),
    )


def _runs_of_layers(phase: PhaseProblem) -> tuple[list[str], FloatArray, BoolArray]:
    """Return the names of M runs, the share of all layers in each, and which operators it has.

    The last is a mask ``[M, V]``. Operators that run once, not in every layer, are a run together,
    at the end, with share 1.
    """
    layers = int(phase.layers.max())
    edges = np.linspace(0, layers, min(RUNS_OF_LAYERS, layers) + 1).round().astype(int)
    names = [
        f"layer {end}" if end == begin + 1 else f"layers {begin + 1} to {end}"
        for begin, end in pairwise(edges)
    ]
    layer_share = list(np.diff(edges) / layers)
    run_has_operator = [phase.layers > 1] * len(names)
    if (phase.layers == 1).any():
        names.append("embedding and head")
        layer_share.append(1.0)
        run_has_operator.append(phase.layers == 1)
    return names, np.array(layer_share), np.array(run_has_operator)


def _critical_path_s(problem: OperatorProblem, counted: BoolArray) -> FloatArray:
    """Return the seconds of the critical path through the operators, ``[B, P]``.

    Only operators in the mask ``counted [V]`` take time.
    """
    end_s = np.zeros_like(problem.latency_s)
    for v in range(len(end_s)):  # in topological order
        predecessor_ends_s = [end_s[before] for before, after in problem.edges if after == v]
        if predecessor_ends_s:
            end_s[v] = np.max(predecessor_ends_s, axis=0)
        if counted[v]:
            end_s[v] += problem.latency_s[v]
    return np.asarray(end_s.max(axis=0), np.float64)
