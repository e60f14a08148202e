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
    parallel: int = 0,
    table: FloatArray | None = None,
) -> OperatorPlan | None:
    """Return the plan of Algorithm 1, started at parallelism index ``parallel``.

    It adds replicas while the latency exceeds the limit, and removes them while the latency is more
    than ``epsilon_s`` below it. ``table [V, B, P, R]`` has the sojourns (wait, service and
    transfer) of all choices; default: computed. ``printed`` follows the text of the source. None if
    an operator is stable at no choice.
    """
    if printed:
        table = printed_sojourns(problem)
    elif table is None:
        table = sojourns(problem)
    choice = _start(problem, table, parallel)  # [V, 3]: batch index, parallelism index, replicas
    if choice is None:
        return None
    all_operators = np.arange(len(problem.names))
    while True:
        b, p, r = choice.T
        sojourn_s = table[all_operators, b, p, r - 1]
        latency, path = critical_path(problem, sojourn_s)
        slowest = path[int(sojourn_s[path].argmax())]
        down = latency <= problem.slo_s - epsilon_s
        if not down and latency <= problem.slo_s:  # within ``epsilon_s`` of the limit
            break
        best_move = _best_move(problem, table, choice, slowest, latency, down=down, printed=printed)
        if best_move is None:
            break
        choice[slowest] = best_move
    return evaluate(problem, "algorithm 1, printed" if printed else "algorithm 1", choice)


def printed_sojourns(problem: OperatorProblem) -> FloatArray:
    """Return the sojourns in seconds as line 8 of the source prints them, ``[V, B, P, R]``.

    They are T / b, plus the wait of an M/M/R queue with requests at ``rate`` and service b / T.
    """
    sizes = problem.batches.astype(np.float64)[None, :, None]
    per_request = replace(
        problem, batches=np.ones_like(problem.batches), latency_s=problem.latency_s / sizes
    )
    return sojourns(per_request)


def _start(problem: OperatorProblem, table: FloatArray, parallel: int) -> IntArray | None:
    """Return the first choices of Algorithm 1 (lines 1 to 6), ``[V, 3]``; None: none is stable.

    A choice is batch index, parallelism index and replicas. Each operator gets the batch with the
    least sojourn at its smallest stable number of replicas.
    """
    choice = np.zeros((len(problem.names), 3), np.int64)
    for v in range(len(problem.names)):
        stable = np.isfinite(table[v, :, parallel, :])
        if not stable.any():
            return None
        # Index of the smallest stable number of replicas for each batch; -1: none.
        replicas = np.where(stable.any(axis=1), stable.argmax(axis=1), -1)
        sojourn_s = table[v, np.arange(replicas.size), parallel, replicas]
        b = int(np.where(replicas >= 0, sojourn_s, np.inf).argmin())
        choice[v] = b, parallel, replicas[b] + 1
    return choice


def _best_move(
    problem: OperatorProblem,
    table: FloatArray,
    choice: IntArray,
    operator: int,
    latency: float,
    *,
    down: bool,
    printed: bool,
) -> tuple[int, int, int] | None:
    """Return the best choice of ``operator`` with one replica more, or one less if ``down``.

    A choice is batch index, parallelism index and replicas. One more replica must shorten the
    critical path, now ``latency`` seconds; the shortest path is best. With one less, the path must
    keep the limit; the fewest slots are best. None if no choice does. ``table`` has the sojourns of
    all choices in seconds. ``printed`` follows the text of the source.
    """
    batch, parallel, replicas = choice[operator].tolist()
    new_replicas = replicas - 1 if down else replicas + 1
    if not 1 <= new_replicas <= problem.max_replicas:
        return None
    sojourn_s = table[np.arange(len(choice)), choice[:, 0], choice[:, 1], choice[:, 2] - 1]
    first_batch = batch if down else 0  # scaling down may only increase the batch
    # Sort key, smallest first, and choice
    moves: list[tuple[tuple[float, float], tuple[int, int, int]]] = []
    for new_batch in range(first_batch, problem.batches.size):
        for new_parallel in range(problem.parallel.size):
            moved_s = table[operator, new_batch, new_parallel, new_replicas - 1]
            if not np.isfinite(moved_s):
                continue
            moved_sojourns = sojourn_s.copy()
            moved_sojourns[operator] = moved_s
            latency_after, _ = critical_path(problem, moved_sojourns)
            slots = float(problem.parallel[new_parallel] * new_replicas)
            move = new_batch, new_parallel, new_replicas
            # Our reading requires that scaling down saves slots; the printed steps do not.
            saves_slots = printed or slots < problem.parallel[parallel] * replicas
            if down and latency_after <= problem.slo_s and saves_slots:
                moves.append(((slots, latency_after), move))
            if not down and latency_after < latency:
                moves.append(((latency_after, slots), move))
    return min(moves)[1] if moves else None


def greedy_plan(
    problem: OperatorProblem, options: tuple[Frontier, ...] | None = None
) -> OperatorPlan | None:
    """Return a plan by our greedy method; None if it finds none within the latency limit.

    For chains of operators, None proves that no plan exists. ``options`` are the frontiers of the
    operators, priced in slots or otherwise; default: in slots.
    """
    options = frontiers(problem) if options is None else options
    if any(not option.slots.size for option in options):
        return None
    picks = np.zeros(len(options), np.int64)  # positions on the frontiers, which the search changes
    if not improve_choices(concatenated_choices(options), problem.graph, problem.slo_s, picks):
        return None
    choice = np.array([option.choice[i] for option, i in zip(options, picks, strict=True)])
    return evaluate(problem, "improved greedy", choice)
