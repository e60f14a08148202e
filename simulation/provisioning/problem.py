"""Define operator-level scaling as arrays: the graph, its latencies, the load and the limit.

Source: operator-level autoscaling, section 4.1 (equations 1 to 8), as read in methods.md A4.
``latency_s`` (T) is the kernel latency of a batch times the number of layers. Batches of b requests
arrive at rate / b and are served at 1 / T. The sojourn is the wait, the service and the transfer.
The service counts with the full T, because a request waits for its whole batch.

A slot is a GPU of one replica: an operator has parallelism times replicas of them.
"""

from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import NamedTuple

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.provisioning.sojourns import Graph, Operators, fill_sojourns, sojourns_of_choice


@dataclass(frozen=True, slots=True, eq=False)
class OperatorProblem:
    """The operators of one phase (prefill or decode), their load and their latency limit.

    Axes: V operators, B batches, P parallelisms. ``edges`` are pairs (before, after) of operator
    indices. An operator without edges is a path alone. ``rate`` counts arrivals at operators:
    requests per second for prefill, sequence iterations per second for decode.
    """

    names: tuple[str, ...]
    edges: tuple[tuple[int, int], ...]
    batches: IntArray  # [B], ascending
    parallel: IntArray  # [P], ascending: GPUs per replica
    latency_s: FloatArray  # [V, B, P] of a whole batch; inf if it cannot run
    transfer_s: FloatArray  # [V, B, P] to the following operators
    rate: float
    slo_s: float
    max_replicas: int = 64
    graph: Graph = field(init=False, repr=False)  # ``edges`` for compiled code

    def __post_init__(self) -> None:
        if not self.rate > 0 or not self.slo_s > 0 or self.max_replicas < 1:
            raise SimulationError("Rate, limit and the most replicas must be positive.")
        object.__setattr__(self, "graph", precedence_graph(len(self.names), self.edges))

    def indices_of(
        self, batch: IntArray | int, parallel: IntArray | int
    ) -> tuple[IntArray, IntArray, IntArray]:
        """Return three index arrays ``[V]``, which select one value per operator of ``[V, B, P]``.

        ``batch`` and ``parallel`` are the batch size and parallelism of each operator, or of all.
        """
        operators = np.arange(len(self.names))
        b, p = np.searchsorted(self.batches, batch), np.searchsorted(self.parallel, parallel)
        return operators, np.broadcast_to(b, operators.shape), np.broadcast_to(p, operators.shape)


@dataclass(frozen=True, slots=True, eq=False)
class OperatorPlan:
    """Replicas, batch and parallelism of every operator, each ``[V]``.

    ``slots`` is the sum of parallelism times replicas (eq. 8). It is not comparable with GPUs of
    whole models, since operators can share a GPU. ``latency_s`` is the sum of sojourns along the
    critical path (eq. 3).
    """

    method: str
    replicas: IntArray
    batch: IntArray
    parallel: IntArray
    sojourn_s: FloatArray
    latency_s: float
    slots: int
    feasible: bool
    bound: int | None = None  # proven lower bound on slots; None: the method proves nothing

    @property
    def slots_of(self) -> IntArray:
        """Return the slots of every operator, ``[V]``: parallelism times replicas."""
        return self.parallel * self.replicas

    @property
    def key(self) -> bytes:
        """Return a key that is equal for plans with the same choices."""
        return np.stack([self.replicas, self.batch, self.parallel]).tobytes()


class CriticalPath(NamedTuple):
    """The path of operators, in order, with the longest sum of sojourns."""

    seconds: float
    operators: list[int]


def critical_path(problem: OperatorProblem, sojourn_s: FloatArray) -> CriticalPath:
    """Return the path with the longest sum of ``sojourn_s [V]``."""
    topological, offsets, parents = (array.tolist() for array in problem.graph)
    finish_s = np.zeros(len(topological))
    latest_parent = [-1] * len(topological)  # -1: an operator without predecessors
    for v in topological:
        predecessors = parents[offsets[v] : offsets[v + 1]]
        if predecessors:
            latest_parent[v] = max(predecessors, key=lambda u: finish_s[u])
        finish_s[v] = sojourn_s[v] + (finish_s[latest_parent[v]] if predecessors else 0.0)
    last_operator = int(finish_s.argmax())
    path = [last_operator]
    while latest_parent[path[-1]] >= 0:
        path.append(latest_parent[path[-1]])
    return CriticalPath(float(finish_s[last_operator]), path[::-1])


def precedence_graph(count: int, edges: tuple[tuple[int, int], ...]) -> Graph:
    """Return the predecessors of ``count`` operators as arrays, in topological order.

    ``edges`` are pairs (before, after). Raises CycleError for a cycle.
    """
    predecessors: dict[int, list[int]] = {v: [] for v in range(count)}
    for before, after in edges:
        predecessors[after].append(before)
    return Graph(
        topological=np.array(list(TopologicalSorter(predecessors).static_order()), np.int64),
        offsets=np.cumsum([0, *(len(parents) for parents in predecessors.values())]),
        parents=np.array([u for parents in predecessors.values() for u in parents], np.int64),
    )


def operator_arrays(problem: OperatorProblem) -> Operators:
    """Return the operators of ``problem`` as arrays for compiled code."""
    return Operators(
        np.ascontiguousarray(problem.latency_s),
        np.ascontiguousarray(problem.transfer_s),
        problem.batches.astype(np.float64),
        np.ascontiguousarray(problem.parallel),
        float(problem.rate),
    )


def sojourns(problem: OperatorProblem) -> FloatArray:
    """Return the sojourn T + W + C of every choice in seconds, ``[V, B, P, R]``; inf: unstable.

    The last axis is 1 to ``max_replicas`` replicas. T is the service, C the transfer, and W the
    mean wait of an M/M/R queue (eqs. 1 and 2, with both terms of Erlang C in the denominator).
    """
    sojourn_s = np.empty((*problem.latency_s.shape, problem.max_replicas))
    fill_sojourns(operator_arrays(problem), sojourn_s)
    return sojourn_s


def evaluate(
    problem: OperatorProblem, method: str, choice: IntArray, bound: int | None = None
) -> OperatorPlan:
    """Return the plan that ``choice`` makes, with its latency and slots.

    ``choice [V, 3]`` has batch index, parallelism index and replicas of each operator. ``bound`` is
    a proven lower bound on slots, if ``method`` gives one.
    """
    batch_index, parallel_index, replicas = choice.T
    chosen = (np.arange(len(problem.names)), batch_index, parallel_index)
    batch, parallel = problem.batches[batch_index], problem.parallel[parallel_index]
    service_s, sojourn_s = problem.latency_s[chosen], np.empty(len(problem.names))
    busy_replicas = problem.rate / batch * service_s
    # Fills ``sojourn_s``.
    sojourns_of_choice(service_s, problem.transfer_s[chosen], busy_replicas, replicas, sojourn_s)
    latency_s, _ = critical_path(problem, sojourn_s)
    return OperatorPlan(
        method=method,
        replicas=replicas.copy(),
        batch=batch,
        parallel=parallel,
        sojourn_s=sojourn_s,
        latency_s=latency_s,
        slots=int((parallel * replicas).sum()),
        feasible=bool(latency_s <= problem.slo_s),
        bound=bound,
    )
