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
def chosen_sojourns(service: Any, transfer: Any, load: Any, replicas: Any, out: Any) -> None:
    """T + W + C of one choice per operator, as ``fill_sojourns`` has it."""
    for v in range(out.size):
        blocked = 1.0
        for r in range(1, replicas[v] + 1):
            blocked = load[v] * blocked / (r + load[v] * blocked)
        r = replicas[v]
        if load[v] >= r:
            out[v] = np.inf
            continue
        waits = r * blocked / (r - load[v] * (1.0 - blocked))
        out[v] = waits * service[v] / (r - load[v]) + service[v] + transfer[v]


@cached_kernel
def fill_frontiers(
    latency: Any,
    transfer: Any,
    batches: Any,
    parallel: Any,
    rate: float,
    replicas: int,
    least: Any,
    low: Any,
    which: Any,
) -> None:
    """``low[v, s]``: the least sojourn of ``v`` on at most ``s`` slots; ``which`` its choice.

    A batch and parallelism that even without waiting are no faster than what their slots already
    buy are passed over, which is most of them. ``least``: the fewest replicas that fit in memory.
    """
    operators, sizes, spreads = latency.shape
    top = low.shape[1] - 1
    for v in range(operators):
        low[v, :] = np.inf
        for j in range(spreads):
            p = parallel[j]
            for i in range(sizes):
                service = latency[v, i, j]
                if not np.isfinite(service):
                    continue
                load = rate / batches[i] * service
                if load >= replicas:
                    continue
                first = max(int(load) + 1, least[v, i, j])
                shortest = service + transfer[v, i, j]
                if first > replicas or low[v, p * first] <= shortest:
                    continue
                blocked = 1.0
                for r in range(1, replicas + 1):
                    blocked = load * blocked / (r + load * blocked)
                    if r < first:
                        continue
                    s = p * r
                    if low[v, s] <= shortest:
                        break
                    waits = r * blocked / (r - load * (1.0 - blocked))
                    sojourn = waits * service / (r - load) + service + transfer[v, i, j]
                    while s <= top and low[v, s] > sojourn:
                        low[v, s] = sojourn
                        which[v, s] = (i * spreads + j) * replicas + r - 1
                        s += 1


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


# --- placement -----------------------------------------------------------------------------------
# A shard is one GPU's part of a replica; arrays over shards come replica by replica. ``where`` is
# the device of a shard, -1 while it has none. Figures of operators: index ``v``.


@cached_kernel
def device_loads(
    shards: int, operator: Any, where: Any, memory: Any, figures: Any, loads: Any
) -> None:
    """Fill ``loads[d]``: memory, expected arithmetic and traffic of each device, and where there
    are more columns (interference by pairs) the time that each operator keeps it busy."""
    loads[:] = 0.0
    for i in range(shards):
        if where[i] >= 0:
            put(loads, where[i], operator[i], memory, figures, 1.0)


@cached_kernel
def put(loads: Any, d: int, v: int, memory: Any, figures: Any, sign: float) -> None:
    """A shard of ``v`` joins device ``d``, or leaves it (``sign`` -1)."""
    loads[d, 0] += sign * memory[v]
    loads[d, 1] += sign * figures[v, 4]
    loads[d, 2] += sign * figures[v, 5]
    if loads.shape[1] > 3:
        loads[d, 3 + v] += sign * figures[v, 6]


@cached_kernel
def slowdown_at(loads: Any, d: int, v: int, figures: Any, beside: Any) -> float:
    """How many times as long a shard of ``v`` takes on ``d``, where it is counted already: by
    ``beside[v, u]``, what all of u's time adds, or where that is empty by the physical model."""
    if beside.shape[0] == 0:
        arithmetic = figures[v, 2] + loads[d, 1] - figures[v, 4]
        traffic = figures[v, 3] + loads[d, 2] - figures[v, 5]
        return float(max(1.0, max(arithmetic, traffic)))
    more = 1.0 - beside[v, v] * figures[v, 6]
    for u in range(beside.shape[0]):
        more += beside[v, u] * loads[d, 3 + u]
    return float(max(1.0, more))


@cached_kernel
def placed_latency(
    shards: int,
    operator: Any,
    replica: Any,
    where: Any,
    loads: Any,
    figures: Any,
    beside: Any,
    rate: Any,
    replicas: Any,
    topological: Any,
    offsets: Any,
    parents: Any,
    slowed: Any,
    s: Any,
    ends: Any,
) -> float:
    """Critical path with every placed replica slowed by what shares its devices.

    ``figures[v]``: latency, transfer, compute, bandwidth, rho * compute, rho * bandwidth, rho (the
    share of time that a replica works); ``beside``: see ``slowdown_at``. A replica is as slow as
    its slowest shard, an operator as the mean of its replicas; ``rate[v]`` is in batches per
    second. ``slowed[v]`` becomes the operator's mean slowdown.
    """
    count = s.size
    slowed[:] = 0.0
    i = 0
    while i < shards:
        v, k = operator[i], replica[i]
        worst = 1.0
        while i < shards and operator[i] == v and replica[i] == k:
            d = where[i]
            if d >= 0:
                worst = max(worst, slowdown_at(loads, d, v, figures, beside))
            i += 1
        slowed[v] += worst
    for v in range(count):
        slowed[v] /= replicas[v]
        service = figures[v, 0] * slowed[v]
        load = rate[v] * service
        r = replicas[v]
        if load >= r:
            return float(np.inf)
        blocked = 1.0
        for k in range(1, r + 1):
            blocked = load * blocked / (k + load * blocked)
        waits = r * blocked / (r - load * (1.0 - blocked))
        s[v] = waits * service / (r - load) + service + figures[v, 1]
    return float(longest_path(s, topological, offsets, parents, ends))


@cached_kernel
def fits(loads: Any, d: int, v: int, memory: Any, figures: Any, capacity: float) -> bool:
    """Whether a shard of ``v`` can join device ``d``: memory, and load it can keep up with."""
    return bool(
        loads[d, 0] + memory[v] <= capacity
        and loads[d, 1] + figures[v, 4] <= 1.0
        and loads[d, 2] + figures[v, 5] <= 1.0
    )


@cached_kernel
def place_greedily(
    sequence: Any,
    first: Any,
    parallel: Any,
    base: Any,
    operator: Any,
    replica: Any,
    memory: Any,
    figures: Any,
    beside: Any,
    rate: Any,
    replicas: Any,
    topological: Any,
    offsets: Any,
    parents: Any,
    capacity: float,
    slo: float,
    shared: bool,
    where: Any,
) -> int:
    """Algorithm 2: devices used, or -1 when a replica cannot stand even on devices of its own.

    ``sequence`` is the order of replicas; replica ``q`` has the shards ``first[q]`` and on, and
    belongs to the whole model instance ``base[q]`` (-1: it is extra). A base replica looks at the
    devices of its instance, an extra one at all of them.
    """
    shards = where.size
    loads = np.zeros((shards, 3 + beside.shape[0]))
    owner = np.full(shards, -1, np.int64)
    tried = np.zeros(shards, np.bool_)
    slowed, s, ends = np.empty(rate.size), np.empty(rate.size), np.empty(rate.size)
    used = 0
    for q in sequence:
        v, instance = operator[first[q]], base[q]
        for i in range(first[q], first[q] + parallel[q]):
            best = -1
            tried[:used] = False
            while best < 0:
                # The device with most slack left after taking the shard, of those not tried yet.
                d, most = -1, -1.0
                for e in range(used):
                    if tried[e] or (instance >= 0 and owner[e] != instance):
                        continue
                    if instance < 0 and not shared:
                        continue
                    twice = False
                    for j in range(first[q], i):
                        twice = twice or where[j] == e
                    if twice or not fits(loads, e, v, memory, figures, capacity):
                        continue
                    busiest = max(loads[e, 1] + figures[v, 4], loads[e, 2] + figures[v, 5])
                    slack = (1.0 - (loads[e, 0] + memory[v]) / capacity) + (1.0 - busiest)
                    if slack > most:
                        d, most = e, slack
                if d < 0:
                    break
                tried[d] = True
                where[i] = d
                put(loads, d, v, memory, figures, 1.0)
                latency = placed_latency(
                    shards, operator, replica, where, loads, figures, beside, rate, replicas,
                    topological, offsets, parents, slowed, s, ends,
                )  # fmt: skip
                if latency <= slo:
                    best = d
                where[i] = -1
                put(loads, d, v, memory, figures, -1.0)
            if best < 0:
                best = used
                used += 1
                owner[best] = instance
                if not fits(loads, best, v, memory, figures, capacity):
                    return -1
            where[i] = best
            put(loads, best, v, memory, figures, 1.0)
    return used


@cached_kernel
def place_exactly(
    operator: Any,
    replica: Any,
    memory: Any,
    figures: Any,
    beside: Any,
    rate: Any,
    replicas: Any,
    topological: Any,
    offsets: Any,
    parents: Any,
    capacity: float,
    slo: float,
    below: int,
    budget: int,
    where: Any,
) -> int:
    """Fewest devices by branch and bound, or 0 when none are fewer than ``below``; -1: over budget.

    Shards join an open device or open the next one; replicas of one operator are alike, so their
    first shards stand on devices in ascending order. Placing more only slows, so a part that misses
    the limit is cut.
    """
    shards = where.size
    loads = np.zeros((shards + 1, 3 + beside.shape[0]))
    slowed, s, ends = np.empty(rate.size), np.empty(rate.size), np.empty(rate.size)
    trial = np.full(shards, -1, np.int64)
    opened = np.zeros(shards + 1, np.int64)  # devices open before shard i
    left = np.zeros(shards + 1)  # memory still to place
    for i in range(shards - 1, -1, -1):
        left[i] = left[i + 1] + memory[operator[i]]
    best, i, looked = below, 0, 0
    at = 0  # next device to try for shard i
    found = False
    while i >= 0:
        looked += 1
        if looked > budget:
            return -1
        placed = False
        if i == shards:
            best = opened[i]
            where[:] = trial
            found = True
        else:
            v = operator[i]
            d = at
            sibling = i > 0 and operator[i - 1] == v
            if sibling and replica[i - 1] == replica[i]:
                d = max(d, trial[i - 1] + 1)  # shards of one replica stand apart, in order
            elif sibling:
                j = i - 1
                while j > 0 and operator[j - 1] == v and replica[j - 1] == replica[i - 1]:
                    j -= 1
                d = max(d, trial[j])
            while d <= opened[i] and not placed:
                more = max(opened[i], d + 1)
                free = 0.0
                for e in range(more):
                    free += capacity - loads[e, 0]
                needed = more + max(0.0, np.ceil((left[i] - free) / capacity - 1e-9))
                if needed < best and fits(loads, d, v, memory, figures, capacity):
                    trial[i] = d
                    put(loads, d, v, memory, figures, 1.0)
                    latency = placed_latency(
                        shards, operator, replica, trial, loads, figures, beside, rate, replicas,
                        topological, offsets, parents, slowed, s, ends,
                    )  # fmt: skip
                    if latency <= slo:
                        opened[i + 1] = more
                        placed = True
                    else:
                        trial[i] = -1
                        put(loads, d, v, memory, figures, -1.0)
                d += 1
        if placed:
            i += 1
            at = 0
            continue
        i -= 1
        if i >= 0:
            v, d = operator[i], trial[i]
            trial[i] = -1
            put(loads, d, v, memory, figures, -1.0)
            at = d + 1
    return best if found else 0
