"""How long operators take by what they are given, compiled: queues, and the choices among them.

Batches of an operator wait for one of its R replicas as in M/M/R, by Erlang's recursion, which is
stable for any number of them: sojourn = wait + service + transfer.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulation.compiled import cached_kernel, inlined_kernel, kernel

UP_STEPS = 3  # frontier points looked ahead when one operator gives slots to another


class Operators(NamedTuple):
    """What the choices of a problem take, as compiled code reads it."""

    latency_s: Any  # [V, B, P] of a batch; inf where it cannot run
    transfer_s: Any  # [V, B, P]
    batches: Any  # [B] as floats
    parallel: Any  # [P]
    rate: float  # that operators see


class Graph(NamedTuple):
    """Precedence: before ``v`` come ``parents[offsets[v] : offsets[v + 1]]``."""

    topological: Any  # [V]
    offsets: Any  # [V + 1]
    parents: Any  # [E]


class Choices(NamedTuple):
    """The choices of all operators in a row, those of ``v`` from ``first[v]`` on."""

    first: Any  # [V + 1]
    slots: Any  # [n] what each costs: slots, or shares of a GPU
    sojourn_s: Any  # [n]


@kernel
def _blocked(before: float, r: int, load: float) -> float:
    """Erlang B of ``r`` replicas from that of one fewer; 1 of none."""
    return load * before / (r + load * before)


@kernel
def _sojourn(blocked: float, r: int, load: float, service: float, transfer: float) -> float:
    waits = r * blocked / (r - load * (1.0 - blocked))  # Erlang C
    return waits * service / (r - load) + service + transfer


@kernel
def sojourn(load: float, replicas: int, service: float, transfer: float) -> float:
    """T + W + C of one choice; inf where ``load`` (in replicas' worth of time) is not stable."""
    if load >= replicas:
        return float(np.inf)
    blocked = 1.0
    for r in range(1, replicas + 1):
        blocked = _blocked(blocked, r, load)
    return _sojourn(blocked, replicas, load, service, transfer)  # type: ignore[no-any-return]


@cached_kernel
def fewest_servers(
    load: float, service: float, after: float, limit: float, kept: float, room: float, most: int
) -> int:
    """The fewest replicas that keep ``limit`` with ``after`` seconds more once served, and in which
    what is in flight finds room: ``kept`` bytes per second of sojourn in all, ``room`` on each; 0:
    none up to ``most``."""
    blocked = 1.0
    for r in range(1, most + 1):
        blocked = _blocked(blocked, r, load)
        if load < r:
            takes = _sojourn(blocked, r, load, service, after)
            if takes <= limit and kept * takes <= r * room:
                return r
    return 0


@cached_kernel
def chosen_sojourns(service: Any, transfer: Any, load: Any, replicas: Any, out: Any) -> None:
    """T + W + C of one choice per operator, ``[V]``."""
    for v in range(out.size):
        out[v] = sojourn(load[v], replicas[v], service[v], transfer[v])


@cached_kernel
def fill_sojourns(problem: Any, out: Any) -> None:
    """T + W + C of every choice, ``[V, B, P, R]``; inf: unstable."""
    operators, sizes, spreads, replicas = out.shape
    for v in range(operators):
        for i in range(sizes):
            for j in range(spreads):
                service = problem.latency_s[v, i, j]
                if not np.isfinite(service):
                    out[v, i, j, :] = np.inf
                    continue
                load, blocked = problem.rate / problem.batches[i] * service, 1.0
                for r in range(1, replicas + 1):
                    blocked = _blocked(blocked, r, load)
                    out[v, i, j, r - 1] = np.inf
                    if load < r:
                        out[v, i, j, r - 1] = _sojourn(
                            blocked, r, load, service, problem.transfer_s[v, i, j]
                        )


@cached_kernel
def fill_frontiers(problem: Any, replicas: int, least: Any, low: Any, which: Any) -> None:
    """``low[v, s]``: the least sojourn of ``v`` on at most ``s`` slots; ``which`` its choice.

    A batch and parallelism that even without waiting are no faster than what their slots already
    buy are passed over, which is most of them. ``least``: the fewest replicas that fit in memory.
    """
    operators, sizes, spreads = problem.latency_s.shape
    top = low.shape[1] - 1
    for v in range(operators):
        low[v, :] = np.inf
        for j in range(spreads):
            p = problem.parallel[j]
            for i in range(sizes):
                service, transfer = problem.latency_s[v, i, j], problem.transfer_s[v, i, j]
                if not np.isfinite(service):
                    continue
                load = problem.rate / problem.batches[i] * service
                if load >= replicas:
                    continue
                first = max(int(load) + 1, least[v, i, j])
                shortest = service + transfer
                if first > replicas or low[v, p * first] <= shortest:
                    continue
                blocked = 1.0
                for r in range(1, replicas + 1):
                    blocked = _blocked(blocked, r, load)
                    if r < first:
                        continue
                    s = p * r
                    if low[v, s] <= shortest:
                        break
                    takes = _sojourn(blocked, r, load, service, transfer)
                    while s <= top and low[v, s] > takes:
                        low[v, s] = takes
                        which[v, s] = (i * spreads + j) * replicas + r - 1
                        s += 1


@inlined_kernel
def longest_path(s: Any, graph: Graph, ends: Any) -> float:
    """Critical path of sojourns ``s``; ``ends`` is room for ``[V]`` numbers."""
    longest = 0.0
    for v in graph.topological:
        begin = 0.0
        for i in range(graph.offsets[v], graph.offsets[v + 1]):
            begin = max(begin, ends[graph.parents[i]])
        ends[v] = begin + s[v]
        longest = max(longest, ends[v])
    return float(longest)


@cached_kernel
def join(left: Any, right: Any, branches: bool, best: Any, taken: Any) -> None:
    """What ``total`` slots buy of two parts in a row or side by side, and the left one's slots."""
    for total in range(best.size):
        for k in range(total + 1):
            x, y = left[k], right[total - k]
            latency = max(x, y) if branches else x + y
            if latency < best[total]:
                best[total] = latency
                taken[total] = k


@kernel
def _cheapest(
    u: int, pick: int, choices: Choices, s: Any, slo: float, graph: Graph, ends: Any
) -> int:
    """The cheapest choice of ``u`` up to ``pick`` that keeps the limit with everything else in
    ``s``; ``pick`` itself is known to."""
    before = s[u]
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
def improve(choices: Choices, graph: Graph, slo: float, picks: Any) -> bool:
    """Move ``picks`` along the frontiers until the limit holds, then give back what it does not
    need; False where no choice is left that shortens the path."""
    first, slots, sojourn_s = choices.first, choices.slots, choices.sojourn_s
    count = picks.size
    ends = np.zeros(count)
    s = np.empty(count)
    for v in range(count):
        s[v] = sojourn_s[first[v] + picks[v]]
    latency = longest_path(s, graph, ends)

    # Buy the most latency per slot until the limit holds; a jump that ends it counts what it needs.
    while latency > slo:
        best, best_v, best_i = 0.0, -1, 0
        for v in range(count):
            here = first[v] + picks[v]
            before = s[v]
            for i in range(here + 1, first[v + 1]):
                s[v] = sojourn_s[i]
                after = longest_path(s, graph, ends)
                gain = (latency - max(after, slo)) / (slots[i] - slots[here])
                if gain > best:
                    best, best_v, best_i = gain, v, i - first[v]
            s[v] = before
        if best_v < 0:
            # Branches of equal length: no single operator shortens the path. Move them all on.
            moved = False
            for v in range(count):
                if first[v] + picks[v] + 1 < first[v + 1]:
                    picks[v] += 1
                    s[v] = sojourn_s[first[v] + picks[v]]
                    moved = True
            if not moved:
                return False
        else:
            picks[best_v] = best_i
            s[best_v] = sojourn_s[first[best_v] + best_i]
        latency = longest_path(s, graph, ends)

    # Give back what the limit does not need; else let one operator grow so that another can shrink
    # by more.
    while True:
        best_saving, best_u, best_i, best_v, best_k = 0, -1, 0, -1, 0
        for u in range(count):
            i = _cheapest(u, picks[u], choices, s, slo, graph, ends)
            saving = slots[first[u] + picks[u]] - slots[first[u] + i]
            if saving > best_saving:
                best_saving, best_u, best_i, best_v = saving, u, i, -1
        if best_saving == 0:
            for v in range(count):
                before = s[v]
                for k in range(picks[v] + 1, min(picks[v] + 1 + UP_STEPS, first[v + 1] - first[v])):
                    cost = slots[first[v] + k] - slots[first[v] + picks[v]]
                    s[v] = sojourn_s[first[v] + k]
                    for u in range(count):
                        if u == v:
                            continue
                        i = _cheapest(u, picks[u], choices, s, slo, graph, ends)
                        saving = slots[first[u] + picks[u]] - slots[first[u] + i] - cost
                        if saving > best_saving:
                            best_saving, best_u, best_i, best_v, best_k = saving, u, i, v, k
                s[v] = before
        if best_saving == 0:
            return True
        picks[best_u] = best_i
        s[best_u] = sojourn_s[first[best_u] + best_i]
        if best_v >= 0:
            picks[best_v] = best_k
            s[best_v] = sojourn_s[first[best_v] + best_k]


@cached_kernel
def enumerate_plans(choices: Choices, graph: Graph, slo: float, picks: Any) -> None:
    """An odometer over all choices; ``picks`` becomes the cheapest that meets the limit."""
    first, slots, sojourn_s = choices.first, choices.slots, choices.sojourn_s
    count = picks.size
    digits = np.zeros(count, np.int64)
    s, ends = np.empty(count), np.empty(count)
    for v in range(count):
        if first[v] == first[v + 1]:
            return
    least = -1
    while True:
        total = 0
        for v in range(count):
            total += slots[first[v] + digits[v]]
            s[v] = sojourn_s[first[v] + digits[v]]
        if (least < 0 or total < least) and longest_path(s, graph, ends) <= slo:
            least = total
            picks[:] = digits
        v = 0
        while v < count:
            digits[v] += 1
            if digits[v] < first[v + 1] - first[v]:
                break
            digits[v] = 0
            v += 1
        if v == count:
            return
