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
def _erlang_b(before: float, r: int, load: float) -> float:
    """Return Erlang B (the blocked share) of ``r`` replicas; ``before`` is that of ``r - 1``."""
    return load * before / (r + load * before)


@kernel
def _sojourn(blocked: float, r: int, load: float, service: float, transfer: float) -> float:
    """Return service + wait + transfer of ``r`` replicas in seconds; ``blocked`` is Erlang B.

    ``load`` is the number of replicas that are busy on average.
    """
    waiting_share = r * blocked / (r - load * (1.0 - blocked))  # Erlang C
    return waiting_share * service / (r - load) + service + transfer


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
    service: float,
    after: float,
    limit: float,
    kept: float,
    room: float,
    max_replicas: int,
) -> int:
    """Return the fewest replicas that keep ``limit`` and have memory for requests in flight.

    0 if more than ``max_replicas`` are needed. A request takes its wait, ``service`` and ``after``,
    all in seconds like ``limit``. The requests in flight need ``kept`` bytes for each second that a
    request takes. Each replica has ``room`` bytes for them.
    """
    blocked = 1.0
    for r in range(1, max_replicas + 1):
        blocked = _erlang_b(blocked, r, load)
        if load < r:
            sojourn_s = _sojourn(blocked, r, load, service, after)
            if sojourn_s <= limit and kept * sojourn_s <= r * room:
                return r
    return 0


@cached_kernel
def sojourns_of_choice(service: Any, transfer: Any, load: Any, replicas: Any, out: Any) -> None:
    """Fill ``out [V]`` with service + wait + transfer of one choice per operator, in seconds."""
    for v in range(out.size):
        out[v] = sojourn(load[v], replicas[v], service[v], transfer[v])


@cached_kernel
def fill_sojourns(problem: Any, out: Any) -> None:
    """Fill ``out`` with the sojourn of every choice in seconds; inf if it is unstable.

    ``out`` has the axes operators, batch sizes, parallelisms and replicas (1, 2, ...).
    """
    operators, sizes, spreads, replicas = out.shape  # spreads: parallelisms
    for v in range(operators):
        for i in range(sizes):
            for j in range(spreads):
                service = problem.latency_s[v, i, j]
                if not np.isfinite(service):
                    out[v, i, j, :] = np.inf
                    continue
                load, blocked = problem.rate / problem.batches[i] * service, 1.0
                for r in range(1, replicas + 1):
                    blocked = _erlang_b(blocked, r, load)
                    out[v, i, j, r - 1] = np.inf
                    if load < r:
                        out[v, i, j, r - 1] = _sojourn(
                            blocked, r, load, service, problem.transfer_s[v, i, j]
                        )


@cached_kernel
def fill_frontiers(problem: Any, replicas: int, fewest: Any, low: Any, which: Any) -> None:
    """Fill ``low[v, n]`` with the least sojourn in seconds of operator ``v`` on at most n slots.

    ``which[v, n]`` gets the choice with it, as index into an array ``[B, P, R]``. ``replicas`` is
    R, the most replicas. ``fewest [V, B, P]`` are the fewest that fit in memory. Most batches and
    parallelisms are skipped: even without a wait they are no faster than the choices found for
    their slots.
    """
    operators, sizes, spreads = problem.latency_s.shape  # spreads: parallelisms
    most_slots = low.shape[1] - 1
    for v in range(operators):
        low[v, :] = np.inf
        for j in range(spreads):
            p = problem.parallel[j]  # slots of a replica
            for i in range(sizes):
                service, transfer = problem.latency_s[v, i, j], problem.transfer_s[v, i, j]
                if not np.isfinite(service):
                    continue
                load = problem.rate / problem.batches[i] * service
                if load >= replicas:
                    continue
                first = max(int(load) + 1, fewest[v, i, j])  # replicas: stable, and within memory
                without_wait_s = service + transfer
                if first > replicas or low[v, p * first] <= without_wait_s:
                    continue
                blocked = 1.0
                for r in range(1, replicas + 1):
                    blocked = _erlang_b(blocked, r, load)
                    if r < first:
                        continue
                    s = p * r
                    # No number of replicas is faster than service and transfer alone.
                    if low[v, s] <= without_wait_s:
                        break
                    sojourn_s = _sojourn(blocked, r, load, service, transfer)
                    while s <= most_slots and low[v, s] > sojourn_s:
                        low[v, s] = sojourn_s
                        which[v, s] = (i * spreads + j) * replicas + r - 1
                        s += 1


@inlined_kernel
def longest_path(s: Any, graph: Graph, ends: Any) -> float:
    """Return the length in seconds of the critical path with sojourns ``s [V]``.

    ``ends [V]`` is a work array.
    """
    longest = 0.0
    for v in graph.topological:
        begin = 0.0
        for i in range(graph.offsets[v], graph.offsets[v + 1]):
            begin = max(begin, ends[graph.parents[i]])
        ends[v] = begin + s[v]
        longest = max(longest, ends[v])
    return float(longest)


@kernel
def _cheapest_choice(
    u: int, pick: int, choices: Choices, s: Any, slo: float, graph: Graph, ends: Any
) -> int:
    """Return the first position on the frontier of operator ``u`` that keeps the limit ``slo``.

    It is the cheapest choice up to ``pick``, which is known to keep the limit (seconds). All other
    operators keep their sojourns ``s [V]``. ``ends [V]`` is a work array.
    """
    before = s[u]
    # Cheaper choices have longer sojourns, so bisection finds the cheapest.
    low, high = 0, pick
    while low < high:
        middle = (low + high) // 2
        s[u] = choices.sojourn_s[choices.first[u] + middle]
        if longest_path(s, graph, ends) <= slo:
            high = middle
        else:
            low = middle + 1
    s[u] = before
    return low


@cached_kernel
def improve_choices(choices: Choices, graph: Graph, slo: float, picks: Any) -> bool:
    """Move ``picks`` along the frontiers until the limit is kept, then release unneeded slots.

    ``picks [V]`` has the choice of each operator as a position on its frontier, and is changed in
    place. ``slo`` is the limit in seconds. Returns False if no remaining choice shortens the path.
    """
    s = np.empty(picks.size)  # present sojourns in seconds
    for v in range(picks.size):
        s[v] = choices.sojourn_s[choices.first[v] + picks[v]]
    if not _speed_up(choices, graph, slo, picks, s):
        return False
    _release_slots(choices, graph, slo, picks, s)
    return True


@kernel
def _speed_up(choices: Choices, graph: Graph, slo: float, picks: Any, s: Any) -> bool:
    """Move ``picks [V]`` to faster choices until the critical path keeps ``slo``; return success.

    The choice that shortens the path most per slot comes first. ``s [V]`` are the present sojourns
    in seconds, changed in place.
    """
    first = choices.first
    ends = np.zeros(picks.size)
    while longest_path(s, graph, ends) > slo:
        best_v, best_pick = _best_step(choices, graph, slo, picks, s, ends)
        if best_v >= 0:
            picks[best_v] = best_pick
            s[best_v] = choices.sojourn_s[first[best_v] + best_pick]
            continue
        # Branches of equal length: no single operator shortens the path, so move all of them.
        moved = False
        for v in range(picks.size):
            if first[v] + picks[v] + 1 < first[v + 1]:
                picks[v] += 1
                s[v] = choices.sojourn_s[first[v] + picks[v]]
                moved = True
        if not moved:
            return False
    return True


@kernel
def _best_step(
    choices: Choices, graph: Graph, slo: float, picks: Any, s: Any, ends: Any
) -> tuple[int, int]:
    """Return the operator and its faster choice that shorten the path most per slot.

    The operator is -1 if none shortens it. Latency below the limit ``slo`` does not count. For the
    arrays see ``_speed_up``; ``ends [V]`` is a work array.
    """
    first, slots = choices.first, choices.slots
    latency = longest_path(s, graph, ends)
    best_gain, best_v, best_pick = 0.0, -1, 0  # gain in seconds per slot
    for v in range(picks.size):
        position = first[v] + picks[v]
        before = s[v]
        for i in range(position + 1, first[v + 1]):  # its faster choices
            s[v] = choices.sojourn_s[i]
            after = longest_path(s, graph, ends)
            gain = (latency - max(after, slo)) / (slots[i] - slots[position])
            if gain > best_gain:
                best_gain, best_v, best_pick = gain, v, i - first[v]
        s[v] = before
    return best_v, best_pick


@kernel
def _release_slots(choices: Choices, graph: Graph, slo: float, picks: Any, s: Any) -> None:
    """Move ``picks [V]`` to cheaper choices as long as the critical path keeps ``slo``.

    The largest saving of slots comes first. If no operator alone can release slots, one takes slots
    so that another releases more. ``s [V]`` are the present sojourns in seconds, changed in place.
    """
    first, slots, sojourn_s = choices.first, choices.slots, choices.sojourn_s
    count = picks.size
    ends = np.zeros(count)
    while True:
        # Best exchange: operator u shrinks to choice i, and operator v (-1: none) grows to k.
        best_saving, best_u, best_i, best_v, best_k = 0.0, -1, 0, -1, 0
        for u in range(count):
            i = _cheapest_choice(u, picks[u], choices, s, slo, graph, ends)
            saving = slots[first[u] + picks[u]] - slots[first[u] + i]
            if saving > best_saving:
                best_saving, best_u, best_i, best_v = saving, u, i, -1
        if best_saving == 0:
            for v in range(count):
                before = s[v]
                end = min(picks[v] + 1 + UP_STEPS, first[v + 1] - first[v])
                for k in range(picks[v] + 1, end):
                    cost = slots[first[v] + k] - slots[first[v] + picks[v]]
                    s[v] = sojourn_s[first[v] + k]
                    for u in range(count):
                        if u == v:
                            continue
                        i = _cheapest_choice(u, picks[u], choices, s, slo, graph, ends)
                        saving = slots[first[u] + picks[u]] - slots[first[u] + i] - cost
                        if saving > best_saving:
                            best_saving, best_u, best_i, best_v, best_k = saving, u, i, v, k
                s[v] = before
        if best_saving == 0:
            return
        picks[best_u] = best_i
        s[best_u] = sojourn_s[first[best_u] + best_i]
        if best_v >= 0:
            picks[best_v] = best_k
            s[best_v] = sojourn_s[first[best_v] + best_k]
