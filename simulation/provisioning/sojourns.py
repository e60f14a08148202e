"""Compute operator sojourns and search among choices, compiled.

Batches of an operator wait for one of its R replicas as in M/M/R. Erlang's recursion is numerically
stable for any R. Sojourn = wait + service + transfer.

A choice is the batch size, parallelism and replicas of an operator. Its slots are the GPUs of its
replicas. The frontier of an operator has its choices from cheap and slow to expensive and fast.
``picks[v]`` is the position of operator v's choice on its frontier: index ``first[v] + picks[v]``.
"""

from typing import Any, NamedTuple

import numpy as np

from simulation.compiler import cached_kernel, inlined_kernel, kernel

UP_STEPS = 3  # frontier points to look ahead when one operator gives slots to another


class Operators(NamedTuple):
    """The latencies of V operators at B batch sizes and P parallelisms, and the rate."""

    latency_s: Any  # [V, B, P] of a batch; inf if it cannot run
    transfer_s: Any  # [V, B, P]
    batches: Any  # [B] as floats
    parallel: Any  # [P]
    rate: float  # arrivals at the operators per second


class Graph(NamedTuple):
    """Precedence: the predecessors of ``v`` are ``parents[offsets[v] : offsets[v + 1]]``."""

    topological: Any  # [V]
    offsets: Any  # [V + 1]
    parents: Any  # [E]


class Choices(NamedTuple):
    """The frontiers of all operators, concatenated; that of operator v starts at ``first[v]``."""

    first: Any  # [V + 1]
    slots: Any  # [n] price of each: slots, or shares of a GPU
    sojourn_s: Any  # [n]


@kernel
def _erlang_b(blocked: float, r: int, load: float) -> float:
    """Return Erlang B (the share that is blocked) of ``r`` replicas.

    ``blocked`` is that of ``r - 1`` replicas; 1 for none. ``load`` is the mean number of busy
    replicas.
    """
    return load * blocked / (r + load * blocked)


@kernel
def _sojourn(blocked: float, r: int, load: float, service_s: float, transfer_s: float) -> float:
    """Return service + wait + transfer of ``r`` replicas in seconds.

    ``blocked`` is Erlang B of these replicas. ``load`` is the number of replicas that are
    busy on average.
    """
    waiting_share = r * blocked / (r - load * (1.0 - blocked))  # Erlang C
    return waiting_share * service_s / (r - load) + service_s + transfer_s


@kernel
def sojourn(load: float, replicas: int, service: float, transfer: float) -> float:
    """Return service + wait + transfer in seconds; inf if ``load`` is too high.

    ``load`` is the number of replicas that are busy on average.
    """
    if load >= replicas:
        return float(np.inf)
    blocked = 1.0
    for r in range(1, replicas + 1):
        blocked = _erlang_b(blocked, r, load)
    return _sojourn(blocked, replicas, load, service, transfer)  # type: ignore[no-any-return]


@cached_kernel
def fewest_servers(
    load: float,
    service_s: float,
    transfer_s: float,
    limit_s: float,
    bytes_per_s: float,
    free_bytes: float,
    max_replicas: int,
) -> int:
    """Return the fewest replicas that keep ``limit_s`` and have memory for requests in flight.

    0 if more than ``max_replicas`` are needed. ``load`` is the number of replicas that are busy on
    average. A request takes its wait, ``service_s`` and ``transfer_s``. The requests in flight need
    ``bytes_per_s`` for each second that a request takes. Each replica has ``free_bytes`` for them.
    """
    blocked = 1.0
    for r in range(1, max_replicas + 1):
        blocked = _erlang_b(blocked, r, load)
        if load < r:
            sojourn_s = _sojourn(blocked, r, load, service_s, transfer_s)
            if sojourn_s <= limit_s and bytes_per_s * sojourn_s <= r * free_bytes:
                return r
    return 0


@cached_kernel
def sojourns_of_choice(
    service: Any, transfer: Any, load: Any, replicas: Any, sojourn_s: Any
) -> None:
    """Fill ``sojourn_s [V]`` with service + wait + transfer of a choice per operator (seconds)."""
    for v in range(sojourn_s.size):
        sojourn_s[v] = sojourn(load[v], replicas[v], service[v], transfer[v])


@cached_kernel
def fill_sojourns(problem: Any, sojourn_s: Any) -> None:
    """Fill ``sojourn_s`` with the sojourn of every choice in seconds; inf if it is unstable.

    ``sojourn_s`` has the axes operators, batch sizes, parallelisms and replicas (1, 2, ...).
    ``problem`` is ``Operators``.
    """
    operators, batches, parallelisms, replicas = sojourn_s.shape
    for v in range(operators):
        for b in range(batches):
            for p in range(parallelisms):
                service_s, transfer_s = problem.latency_s[v, b, p], problem.transfer_s[v, b, p]
                sojourn_s[v, b, p, :] = np.inf
                if not np.isfinite(service_s):
                    continue
                load, blocked = problem.rate / problem.batches[b] * service_s, 1.0
                for r in range(1, replicas + 1):
                    blocked = _erlang_b(blocked, r, load)
                    if load < r:
                        sojourn_s[v, b, p, r - 1] = _sojourn(
                            blocked, r, load, service_s, transfer_s
                        )


@cached_kernel
def fill_frontiers(
    problem: Any, replicas: int, fewest: Any, least_s: Any, best_choice: Any
) -> None:
    """Fill ``least_s[v, n]`` with the least sojourn (seconds) of operator ``v`` on up to n slots.

    ``best_choice[v, n]`` gets the choice with it, as index into an array ``[B, P, R]``.
    ``replicas`` is R, the most replicas. ``fewest [V, B, P]`` are the fewest that fit in memory.
    ``problem`` is ``Operators``. Most batches and parallelisms are skipped: even without a wait
    they are no faster than the choices found for their slots.
    """
    operators, batches, parallelisms = problem.latency_s.shape
    most_slots = least_s.shape[1] - 1
    for v in range(operators):
        least_s[v, :] = np.inf
        for p in range(parallelisms):
            slots_of_replica = problem.parallel[p]
            for b in range(batches):
                service_s, transfer_s = problem.latency_s[v, b, p], problem.transfer_s[v, b, p]
                if not np.isfinite(service_s):
                    continue
                load = problem.rate / problem.batches[b] * service_s
                if load >= replicas:
                    continue
                # The fewest replicas that are stable, and fit in memory
                fewest_here = max(int(load) + 1, fewest[v, b, p])
                without_wait_s = service_s + transfer_s
                if (
                    fewest_here > replicas
                    or least_s[v, slots_of_replica * fewest_here] <= without_wait_s
                ):
                    continue
                blocked = 1.0
                for r in range(1, replicas + 1):
                    blocked = _erlang_b(blocked, r, load)
                    if r < fewest_here:
                        continue
                    slots = slots_of_replica * r
                    # No number of replicas is faster than service and transfer alone.
                    if least_s[v, slots] <= without_wait_s:
                        break
                    sojourn_s = _sojourn(blocked, r, load, service_s, transfer_s)
                    # Also the best choice of more slots, up to those with a faster one.
                    while slots <= most_slots and least_s[v, slots] > sojourn_s:
                        least_s[v, slots] = sojourn_s
                        best_choice[v, slots] = (b * parallelisms + p) * replicas + r - 1
                        slots += 1


@inlined_kernel
def longest_path(sojourn_s: Any, graph: Graph, ends: Any) -> float:
    """Return the length in seconds of the critical path with ``sojourn_s [V]``.

    ``ends [V]`` is a work array: the end of each operator after the begin of the pass.
    """
    longest = 0.0
    for operator in graph.topological:
        begin = 0.0
        for i in range(graph.offsets[operator], graph.offsets[operator + 1]):
            begin = max(begin, ends[graph.parents[i]])
        ends[operator] = begin + sojourn_s[operator]
        longest = max(longest, ends[operator])
    return float(longest)


@kernel
def _cheapest_pick(
    operator: int,
    known_pick: int,
    choices: Choices,
    sojourn_s: Any,
    limit_s: float,
    graph: Graph,
    ends: Any,
) -> int:
    """Return the first position on the frontier of ``operator`` that keeps the limit ``limit_s``.

    It is the cheapest choice up to ``known_pick``, which is known to keep the limit. All other
    operators keep their ``sojourn_s [V]``. ``ends [V]`` is a work array.
    """
    present_s = sojourn_s[operator]
    # Cheaper choices have longer sojourns, so bisection finds the cheapest.
    low, high = 0, known_pick
    while low < high:
        middle = (low + high) // 2
        sojourn_s[operator] = choices.sojourn_s[choices.first[operator] + middle]
        if longest_path(sojourn_s, graph, ends) <= limit_s:
            high = middle
        else:
            low = middle + 1
    sojourn_s[operator] = present_s
    return low


@cached_kernel
def improve_choices(choices: Choices, graph: Graph, limit_s: float, picks: Any) -> bool:
    """Move ``picks`` along the frontiers until the limit is kept, then release unneeded slots.

    ``picks [V]`` has the choice of each operator as a position on its frontier, and is changed in
    place. Returns False if no remaining choice shortens the path.
    """
    sojourn_s = np.empty(picks.size)
    for operator in range(picks.size):
        _pick(operator, picks[operator], choices, picks, sojourn_s)
    if not _speed_up(choices, graph, limit_s, picks, sojourn_s):
        return False
    _release_slots(choices, graph, limit_s, picks, sojourn_s)
    return True


@kernel
def _pick(operator: int, pick: int, choices: Choices, picks: Any, sojourn_s: Any) -> None:
    """Give ``operator`` the choice at position ``pick`` of its frontier, and that sojourn."""
    picks[operator] = pick
    sojourn_s[operator] = choices.sojourn_s[choices.first[operator] + pick]


@kernel
def _added_slots(choices: Choices, picks: Any, operator: int, pick: int) -> float:
    """Return how many slots the choice ``pick`` of ``operator`` has more than its present one."""
    first, slots = choices.first[operator], choices.slots
    return float(slots[first + pick] - slots[first + picks[operator]])


@kernel
def _speed_up(choices: Choices, graph: Graph, limit_s: float, picks: Any, sojourn_s: Any) -> bool:
    """Move ``picks [V]`` to faster choices until the critical path keeps ``limit_s``.

    The choice that shortens the path most per slot comes first. ``sojourn_s [V]`` are those of
    ``picks``; both are changed in place. Return False if no faster choice is left, although the
    path is still too long.
    """
    first, ends = choices.first, np.zeros(picks.size)
    while longest_path(sojourn_s, graph, ends) > limit_s:
        best_operator, best_pick = _best_step(choices, graph, limit_s, picks, sojourn_s, ends)
        if best_operator >= 0:
            _pick(best_operator, best_pick, choices, picks, sojourn_s)
            continue
        # Branches of equal length: no single operator shortens the path, so move all of them.
        moved = False
        for operator in range(picks.size):
            if first[operator] + picks[operator] + 1 < first[operator + 1]:
                _pick(operator, picks[operator] + 1, choices, picks, sojourn_s)
                moved = True
        if not moved:
            return False
    return True


@kernel
def _best_step(
    choices: Choices, graph: Graph, limit_s: float, picks: Any, sojourn_s: Any, ends: Any
) -> tuple[int, int]:
    """Return the operator and its faster choice that shorten the path most per slot.

    The operator is -1 if none shortens it. Latency below ``limit_s`` does not count. For the
    arrays see ``_speed_up``; ``ends [V]`` is a work array.
    """
    first = choices.first
    latency_s = longest_path(sojourn_s, graph, ends)
    best_gain, best_operator, best_pick = 0.0, -1, 0  # gain in seconds per slot
    for operator in range(picks.size):
        present_s = sojourn_s[operator]
        for pick in range(picks[operator] + 1, first[operator + 1] - first[operator]):  # faster
            sojourn_s[operator] = choices.sojourn_s[first[operator] + pick]
            new_latency_s = longest_path(sojourn_s, graph, ends)
            shorter_s = latency_s - max(new_latency_s, limit_s)
            gain = shorter_s / _added_slots(choices, picks, operator, pick)
            if gain > best_gain:
                best_gain, best_operator, best_pick = gain, operator, pick
        sojourn_s[operator] = present_s
    return best_operator, best_pick


@kernel
def _release_slots(
    choices: Choices, graph: Graph, limit_s: float, picks: Any, sojourn_s: Any
) -> None:
    """Move ``picks [V]`` to cheaper choices as long as the critical path keeps ``limit_s``.

    The largest saving of slots comes first. If no operator alone can release slots, one takes slots
    so that another releases more. ``sojourn_s [V]`` are those of ``picks``; both are changed.
    """
    first, count = choices.first, picks.size
    ends = np.zeros(count)
    while True:
        # The best move: which operator shrinks or grows (-1: none), and to which choice.
        best_saving, shrinking, small_pick, growing, large_pick = 0.0, -1, 0, -1, 0
        for u in range(count):
            pick = _cheapest_pick(u, picks[u], choices, sojourn_s, limit_s, graph, ends)
            saving = -_added_slots(choices, picks, u, pick)
            if saving > best_saving:
                best_saving, shrinking, small_pick = saving, u, pick
        if best_saving == 0:
            # No operator alone can shrink: let operator v grow so that u shrinks by more.
            for v in range(count):
                present_s = sojourn_s[v]
                end = min(picks[v] + 1 + UP_STEPS, first[v + 1] - first[v])
                for larger in range(picks[v] + 1, end):
                    cost = _added_slots(choices, picks, v, larger)
                    sojourn_s[v] = choices.sojourn_s[first[v] + larger]
                    for u in range(count):
                        if u == v:
                            continue
                        pick = _cheapest_pick(u, picks[u], choices, sojourn_s, limit_s, graph, ends)
                        saving = -_added_slots(choices, picks, u, pick) - cost
                        if saving > best_saving:
                            best_saving, shrinking, small_pick = saving, u, pick
                            growing, large_pick = v, larger
                sojourn_s[v] = present_s
        if best_saving == 0:
            return
        _pick(shrinking, small_pick, choices, picks, sojourn_s)
        if growing >= 0:
            _pick(growing, large_pick, choices, picks, sojourn_s)
