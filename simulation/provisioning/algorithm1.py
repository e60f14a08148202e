"""Scale operators by Algorithm 1 of the source (methods.md A4) in two readings, and by a greedy.

``algorithm1`` follows the printed steps: it only changes the bottleneck of the critical path. With
``printed=True`` it also decides by the printed sojourn (line 8). There, requests arrive at rate,
are served at b / T, and take T / b in place of T. That is not the latency of a request. The
returned plan is evaluated by the true sojourn, and may miss the limit.

``greedy_plan`` is our improvement. It moves along each operator's frontier: its choices from cheap
and slow to expensive and fast. When it scales down, it also tries operators that are not the
bottleneck, and exchanges slots between two operators.
"""

from dataclasses import replace

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.provisioning.frontier import Frontier, concatenated_choices, frontiers
from simulation.provisioning.problem import (
    OperatorPlan,
    OperatorProblem,
    critical_path,
    evaluate,
    sojourns,
)
from simulation.provisioning.sojourns import improve_choices


def algorithm1(
    problem: OperatorProblem,
    *,
    printed: bool = False,
    epsilon_s: float = 0.0,
    parallel_index: int = 0,
    sojourn_table: FloatArray | None = None,
) -> OperatorPlan | None:
    """Return the plan of Algorithm 1, started at parallelism index ``parallel_index``.

    It adds replicas while the latency exceeds the limit, and removes them while the latency is more
    than ``epsilon_s`` below it. ``sojourn_table [V, B, P, R]`` has the sojourns (wait, service and
    transfer) of all choices in seconds; default: computed. With ``printed`` it uses the sojourns
    that the source prints, and ignores the table. None if an operator is stable at no choice.
    """
    if printed:
        sojourn_table = printed_sojourns(problem)
    elif sojourn_table is None:
        sojourn_table = sojourns(problem)
    # [V, 3]: batch index, parallelism index and replicas of each operator
    choice = _initial_choices(problem, sojourn_table, parallel_index)
    if choice is None:
        return None
    all_operators = np.arange(len(problem.names))
    while True:
        batch_index, parallel_index_of, replicas = choice.T
        sojourn_s = sojourn_table[all_operators, batch_index, parallel_index_of, replicas - 1]
        latency_s, path = critical_path(problem, sojourn_s)
        slowest = path[int(sojourn_s[path].argmax())]
        within_limit = latency_s <= problem.slo_s
        scaling_down = latency_s <= problem.slo_s - epsilon_s
        if within_limit and not scaling_down:  # within ``epsilon_s`` of the limit
            break
        best_move = _best_move(
            problem,
            sojourn_table,
            choice,
            slowest,
            latency_s,
            scaling_down=scaling_down,
            printed=printed,
        )
        if best_move is None:
            break
        choice[slowest] = best_move
    return evaluate(problem, "algorithm 1, printed" if printed else "algorithm 1", choice)


def printed_sojourns(problem: OperatorProblem) -> FloatArray:
    """Return the sojourns in seconds as line 8 of the source prints them, ``[V, B, P, R]``.

    They are T / b, plus the wait of an M/M/R queue with requests at ``rate`` and service b / T.
    """
    batch_sizes = problem.batches.astype(np.float64)[None, :, None]
    per_request = replace(
        problem, batches=np.ones_like(problem.batches), latency_s=problem.latency_s / batch_sizes
    )
    return sojourns(per_request)


def _initial_choices(
    problem: OperatorProblem, sojourn_table: FloatArray, parallel_index: int
) -> IntArray | None:
    """Return the first choices of Algorithm 1 (lines 1 to 6), ``[V, 3]``.

    A choice is batch index, parallelism index and replicas. Each operator gets the batch with the
    least sojourn at its smallest stable number of replicas. None if an operator is stable at no
    batch and number of replicas.
    """
    choice = np.zeros((len(problem.names), 3), np.int64)
    for v in range(len(problem.names)):
        stable = np.isfinite(sojourn_table[v, :, parallel_index, :])
        if not stable.any():
            return None
        # For each batch, the index of its smallest stable number of replicas; -1: none. The index
        # r stands for r + 1 replicas.
        fewest = np.where(stable.any(axis=1), stable.argmax(axis=1), -1)
        sojourn_s = sojourn_table[v, np.arange(fewest.size), parallel_index, fewest]
        best_batch = int(np.where(fewest >= 0, sojourn_s, np.inf).argmin())
        choice[v] = best_batch, parallel_index, fewest[best_batch] + 1
    return choice


def _best_move(
    problem: OperatorProblem,
    sojourn_table: FloatArray,
    choice: IntArray,
    operator: int,
    latency_s: float,
    *,
    scaling_down: bool,
    printed: bool,
) -> tuple[int, int, int] | None:
    """Return the best choice of ``operator`` with one replica more, or with one less.

    A choice is batch index, parallelism index and replicas. If ``scaling_down``, the choice has one
    replica less, the critical path must keep the limit, and the fewest slots are best. Otherwise it
    has one replica more, the path must get shorter than ``latency_s``, and the shortest is best.
    None if there is no such choice. ``sojourn_table`` has the sojourns of all choices in seconds.
    ``printed`` follows the text of the source.
    """
    batch, parallel, replicas = choice[operator].tolist()
    new_replicas = replicas - 1 if scaling_down else replicas + 1
    if not 1 <= new_replicas <= problem.max_replicas:
        return None
    sojourn_s = sojourn_table[np.arange(len(choice)), choice[:, 0], choice[:, 1], choice[:, 2] - 1]
    first_batch = batch if scaling_down else 0  # scaling down may only increase the batch
    # Sort key, smallest first, and choice
    moves: list[tuple[tuple[float, float], tuple[int, int, int]]] = []
    for new_batch in range(first_batch, problem.batches.size):
        for new_parallel in range(problem.parallel.size):
            moved_s = sojourn_table[operator, new_batch, new_parallel, new_replicas - 1]
            if not np.isfinite(moved_s):
                continue
            moved_sojourns = sojourn_s.copy()
            moved_sojourns[operator] = moved_s
            latency_after, _ = critical_path(problem, moved_sojourns)
            slots = float(problem.parallel[new_parallel] * new_replicas)
            move = new_batch, new_parallel, new_replicas
            # Our reading requires that scaling down saves slots; the printed steps do not.
            saves_slots = printed or slots < problem.parallel[parallel] * replicas
            if scaling_down and latency_after <= problem.slo_s and saves_slots:
                moves.append(((slots, latency_after), move))
            if not scaling_down and latency_after < latency_s:
                moves.append(((latency_after, slots), move))
    if not moves:
        return None
    _, best_choice = min(moves)
    return best_choice


def greedy_plan(
    problem: OperatorProblem, frontier_of: tuple[Frontier, ...] | None = None
) -> OperatorPlan | None:
    """Return a plan by our greedy method; None if it finds none within the latency limit.

    For chains of operators, None proves that no plan exists. ``frontier_of`` has the frontier of
    each operator, priced in slots or otherwise; default: in slots.
    """
    frontier_of = frontiers(problem) if frontier_of is None else frontier_of
    if any(not frontier.slots.size for frontier in frontier_of):
        return None
    # Position of each operator on its frontier. ``improve_choices`` changes it in place.
    picks = np.zeros(len(frontier_of), np.int64)
    if not improve_choices(concatenated_choices(frontier_of), problem.graph, problem.slo_s, picks):
        return None
    choice = np.array(
        [frontier.choice[pick] for frontier, pick in zip(frontier_of, picks, strict=True)]
    )
    return evaluate(problem, "improved greedy", choice)
