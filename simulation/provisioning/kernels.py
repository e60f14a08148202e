"""The compiled loops of operator scaling.

In one file, because numba's cache on disk watches only the file of the function it stores.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiled import cached_kernel

UP_STEPS = 3  # frontier points looked ahead when one operator gives slots to another


@cached_kernel
def fill_sojourns(latency: Any, transfer: Any, batches: Any, rate: float, out: Any) -> None:
    operators, sizes, spreads, replicas = out.shape
    for v in range(operators):
        for i in range(sizes):
            for j in range(spreads):
                service = latency[v, i, j]
                if not np.isfinite(service):
                    out[v, i, j, :] = np.inf
                    continue
                load = rate / batches[i] * service
                blocked = 1.0  # Erlang B, by its recursion: stable for any number of replicas
                for r in range(1, replicas + 1):
                    blocked = load * blocked / (r + load * blocked)
                    if load >= r:
                        out[v, i, j, r - 1] = np.inf
                        continue
                    waits = r * blocked / (r - load * (1.0 - blocked))
                    wait = waits * service / (r - load)
                    out[v, i, j, r - 1] = wait + service + transfer[v, i, j]


@cached_kernel
def longest_path(s: Any, topological: Any, offsets: Any, parents: Any, ends: Any) -> float:
    """Critical path of sojourns ``s``, compiled; ``ends`` is room for ``[V]`` numbers."""
    longest = 0.0
    for v in topological:
        begin = 0.0
        for i in range(offsets[v], offsets[v + 1]):
            begin = max(begin, ends[parents[i]])
        ends[v] = begin + s[v]
        longest = max(longest, ends[v])
    return float(longest)


@cached_kernel
def join(one: Any, two: Any, branches: bool, best: Any, taken: Any) -> None:
    for total in range(best.size):
        for k in range(total + 1):
            x, y = one[k], two[total - k]
            latency = max(x, y) if branches else x + y
            if latency < best[total]:
                best[total] = latency
                taken[total] = k


@cached_kernel
def _cheapest(
    u: int,
    first: Any,
    sojourn: Any,
    s: Any,
    at: int,
    slo: float,
    topological: Any,
    offsets: Any,
    parents: Any,
    ends: Any,
) -> int:
    """The cheapest point of ``u`` up to ``at`` that keeps the limit with everything else in ``s``;
    ``at`` itself is known to."""
    kept = s[u]
    low, high = 0, at
    while low < high:
        middle = (low + high) // 2
        s[u] = sojourn[first[u] + middle]
        if longest_path(s, topological, offsets, parents, ends) <= slo:
            high = middle
        else:
            low = middle + 1
    s[u] = kept
    return low


@cached_kernel
def improve(
    first: Any,
    slots: Any,
    sojourn: Any,
    topological: Any,
    offsets: Any,
    parents: Any,
    slo: float,
    picks: Any,
) -> bool:
    count = picks.size
    ends = np.zeros(count)
    s = np.empty(count)
    for v in range(count):
        s[v] = sojourn[first[v] + picks[v]]
    latency = longest_path(s, topological, offsets, parents, ends)

    # Buy the most latency per slot until the limit holds; a jump that ends it counts what it needs.
    while latency > slo:
        best, best_v, best_i = 0.0, -1, 0
        for v in range(count):
            here = first[v] + picks[v]
            kept = s[v]
            for i in range(here + 1, first[v + 1]):
                s[v] = sojourn[i]
                after = longest_path(s, topological, offsets, parents, ends)
                gain = (latency - max(after, slo)) / (slots[i] - slots[here])
                if gain > best:
                    best, best_v, best_i = gain, v, i - first[v]
            s[v] = kept
        if best_v < 0:
            # Branches of equal length: no single operator shortens the path. Move them all on.
            moved = False
            for v in range(count):
                if first[v] + picks[v] + 1 < first[v + 1]:
                    picks[v] += 1
                    s[v] = sojourn[first[v] + picks[v]]
                    moved = True
            if not moved:
                return False
        else:
            picks[best_v] = best_i
            s[best_v] = sojourn[first[best_v] + best_i]
        latency = longest_path(s, topological, offsets, parents, ends)

    # Give back what the limit does not need; else let one operator grow so that another can shrink
    # by more.
    while True:
        best_saving, best_u, best_i, best_v, best_k = 0, -1, 0, -1, 0
        for u in range(count):
            i = _cheapest(u, first, sojourn, s, picks[u], slo, topological, offsets, parents, ends)
            saving = slots[first[u] + picks[u]] - slots[first[u] + i]
            if saving > best_saving:
                best_saving, best_u, best_i, best_v = saving, u, i, -1
        if best_saving == 0:
            for v in range(count):
                kept = s[v]
                for k in range(picks[v] + 1, min(picks[v] + 1 + UP_STEPS, first[v + 1] - first[v])):
                    cost = slots[first[v] + k] - slots[first[v] + picks[v]]
                    s[v] = sojourn[first[v] + k]
                    for u in range(count):
                        if u == v:
                            continue
                        i = _cheapest(
                            u, first, sojourn, s, picks[u], slo, topological, offsets, parents, ends
                        )
                        saving = slots[first[u] + picks[u]] - slots[first[u] + i] - cost
                        if saving > best_saving:
                            best_saving, best_u, best_i, best_v, best_k = saving, u, i, v, k
                s[v] = kept
        if best_saving == 0:
            return True
        picks[best_u] = best_i
        s[best_u] = sojourn[first[best_u] + best_i]
        if best_v >= 0:
            picks[best_v] = best_k
            s[best_v] = sojourn[first[best_v] + best_k]


@cached_kernel
def enumerate_plans(
    first: Any,
    slots: Any,
    sojourn: Any,
    topological: Any,
    offsets: Any,
    parents: Any,
    slo: float,
    picks: Any,
) -> None:
    """An odometer over all choices; ``picks`` becomes the cheapest that meets the limit."""
    count = picks.size
    at = np.zeros(count, np.int64)
    s, ends = np.empty(count), np.empty(count)
    for v in range(count):
        if first[v] == first[v + 1]:
            return
    least = -1
    while True:
        total = 0
        for v in range(count):
            total += slots[first[v] + at[v]]
            s[v] = sojourn[first[v] + at[v]]
        if (least < 0 or total < least) and longest_path(
            s, topological, offsets, parents, ends
        ) <= slo:
            least = total
            picks[:] = at
        v = 0
        while v < count:
            at[v] += 1
            if at[v] < first[v + 1] - first[v]:
                break
            at[v] = 0
            v += 1
        if v == count:
            return
