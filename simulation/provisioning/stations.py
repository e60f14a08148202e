"""Simulate requests through a graph of stations, compiled, to check plans of every level.

A station is an operator, a run of layers, a pipeline stage or a whole replica, with replicas on
devices. A request makes one pass (a prompt), or one per token (a decoding sequence). A pass visits
every station once, after its predecessors in the graph, for the work of all its layers.

A free replica processes waiting requests up to its batch: first come, first served, or shortest
prompts first. The duration is the station's curve at the tokens, pairs and KV cache of these
requests. Stations with KV cache are sticky: a request stays on the replica that it got at
admission, the one with the fewest requests. Sequences are admitted first come, first served. Every
sticky station must have a place and memory for their whole KV cache.

Several services may share devices: each has its own stations and its own line of requests.
Replicas that run on a device at the same time share it. All of them slow down by max(1, sum of
arithmetic shares, sum of bandwidth shares), or by measured slowdowns of pairs. A finished batch
crosses the sender's link after earlier ones, and arrives after the latency of its hops.
"""

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.compiler import cached_kernel, inlined_kernel, kernel
from simulation.performance.curves import iteration_seconds
from simulation.provisioning.station_state import Graph, Passes, ReplayState, initial_state

NEVER = np.inf
FLYING, FREE, VISITS, AGAIN = range(4)  # indices of Run.count
LANDS, SLOT = range(2)  # columns of Run.flights, a heap
STATION, FIRST = range(2)  # columns of Run.flight


@inlined_kernel
def _update_end(run: ReplayState, k: int, end: float) -> None:
    """Set the end time of replica ``k`` in the tree."""
    tree, i = run.tree, run.tree.size // 2 + k
    tree[i] = end
    i //= 2
    while i >= 1:
        tree[i] = min(tree[2 * i], tree[2 * i + 1])
        i //= 2


@inlined_kernel
def _earliest_end(run: ReplayState) -> int:
    """Return the replica that ends first."""
    tree, i, w = run.tree, 1, run.tree.size // 2
    while i < w:
        i = 2 * i if tree[2 * i] <= tree[2 * i + 1] else 2 * i + 1
    return int(i - w)


@inlined_kernel
def _slowdown(g: Graph, run: ReplayState, k: int) -> float:
    """Return the slowdown factor of replica ``k`` on its devices now."""
    worst, v = 1.0, g.station[k]
    for i in range(g.shard[k], g.shard[k + 1]):
        d = g.device[i]
        if g.interference.shape[0]:
            more = 1.0 - g.interference[v, v]
            for u in range(g.interference.shape[0]):
                more += g.interference[v, u] * run.active[d, u]
            worst = max(worst, more)
        else:
            worst = max(worst, run.compute[d], run.bandwidth[d])
    return float(worst)


@inlined_kernel
def _change_load(g: Graph, run: ReplayState, k: int, sign: float, t: float) -> None:
    """Start (``sign`` 1) or end (-1) the work of replica ``k`` at time ``t``.

    Other replicas on its devices change their speed, so their end times are updated.
    """
    v = g.station[k]
    for i in range(g.shard[k], g.shard[k + 1]):
        d = g.device[i]
        run.compute[d] += sign * g.compute[v]
        run.bandwidth[d] += sign * g.bandwidth[v]
        if g.interference.shape[0]:
            run.active[d, v] += sign
    for i in range(g.shard[k], g.shard[k + 1]):
        d = g.device[i]
        for j in range(g.home[d], g.home[d + 1]):
            q = g.housed[j]
            if run.busy[q] < 0 or q == k:
                continue
            slow = _slowdown(g, run, q)
            if slow != run.slow[q]:
                # Account for the work done at the old speed before the speed changes.
                run.work[q] -= (t - run.since[q]) / run.slow[q]
                run.since[q], run.slow[q] = t, slow
                _update_end(run, q, t + max(run.work[q], 0.0) * slow)


@inlined_kernel
def _queue_number(g: Graph, run: ReplayState, v: int, r: int) -> int:
    """Return the queue of request ``r`` at station ``v``."""
    return int(g.first[v] + run.own[v, r]) if g.sticky[v] else int(g.first[v])


@inlined_kernel
def _enqueue(g: Graph, run: ReplayState, v: int, r: int) -> None:
    """Add request ``r`` to its queue at station ``v``."""
    q = _queue_number(g, run, v, r)
    run.after[v, r] = -1
    if run.waiting[q] == 0:
        run.head[q] = r
        run.kicked[run.kicks[0]] = q
        run.kicks[0] += 1
    else:
        run.after[v, run.tail[q]] = r
    run.tail[q] = r
    run.waiting[q] += 1


@kernel
def _insert_sorted(
    after: IntArray, head: IntArray, tail: IntArray, key: FloatArray, v: int, q: int
) -> None:
    """Sort waiting requests by ``key``, ties in order of arrival.

    Sorting happens when a batch starts. At each arrival, it would make the whole replay three times
    as slow.
    """
    last = head[q]
    while after[v, last] >= 0:
        r = after[v, last]
        if key[last] <= key[r]:
            last = r
            continue
        after[v, last] = after[v, r]
        before, behind = -1, head[q]
        while key[behind] <= key[r]:
            before, behind = behind, after[v, behind]
        after[v, r] = behind
        if before < 0:
            head[q] = r
        else:
            after[v, before] = r
    tail[q] = last


@inlined_kernel
def _start_batch(g: Graph, p: Passes, run: ReplayState, q: int, k: int, t: float) -> None:
    """Start a batch from queue ``q`` on replica ``k``."""
    v = g.station[k]
    decodes = g.decodes[v]
    if p.ordered and not decodes:
        _insert_sorted(run.after, run.head, run.tail, p.key, v, q)
    n = min(run.waiting[q], g.batch[v])
    first = run.head[q]
    r, last = first, first
    tokens, pairs = 0.0, 0.0
    for _ in range(n):
        isl = float(p.isl[r])
        if decodes:
            tokens += isl + 1.0 + run.done[r]
        else:
            tokens += isl
            pairs += 0.5 * isl * isl
        last = r
        r = run.after[v, r]
    run.after[v, last] = -1
    run.head[q] = r
    run.waiting[q] -= n
    if run.waiting[q] > 0:
        run.kicked[run.kicks[0]] = q
        run.kicks[0] += 1
    curve = g.curves[g.curve[v] : g.curve[v + 1]]
    if decodes:
        seconds = iteration_seconds(curve, float(n), tokens, 0.0, 0.0)
    else:
        seconds = iteration_seconds(curve, 0.0, 0.0, tokens, pairs)
    run.count[VISITS] += n
    run.busy[k] = first
    run.work[k], run.since[k] = seconds, t
    _change_load(g, run, k, 1.0, t)
    run.slow[k] = _slowdown(g, run, k)
    _update_end(run, k, t + seconds * run.slow[k])


@inlined_kernel
def _start_free_replicas(g: Graph, p: Passes, run: ReplayState, t: float) -> None:
    """Start batches of waiting requests on free replicas."""
    while run.kicks[0] > 0:
        run.kicks[0] -= 1
        q = run.kicked[run.kicks[0]]
        if run.waiting[q] == 0:
            continue
        v, k = g.station[q], -1
        if g.sticky[v]:
            k = q if run.busy[q] < 0 else -1
        elif run.idles[v] > 0:
            run.idles[v] -= 1
            k = run.idle[g.first[v] + run.idles[v]]
        if k >= 0:
            _start_batch(g, p, run, q, k, t)


@inlined_kernel
def _begin_pass(g: Graph, p: Passes, run: ReplayState, r: int) -> None:
    """Begin a pass of request ``r``: enqueue it at every station without predecessors."""
    first, end = g.span[p.service[r]], g.span[p.service[r] + 1]
    run.left[r] = end - first
    for v in range(first, end):
        run.need[r, v] = g.before[v]
        if g.before[v] == 0:
            _enqueue(g, run, v, r)


@inlined_kernel
def _assign_replicas(g: Graph, p: Passes, run: ReplayState, r: int) -> bool:
    """Assign request ``r`` a replica of every sticky station; return False if one has no room."""
    size = p.isl[r] + p.passes[r]
    leading, first, end = -1, g.span[p.service[r]], g.span[p.service[r] + 1]
    for v in range(first, end):
        if not g.sticky[v]:
            continue
        best = -1
        if p.aligned and leading >= 0:
            best = g.first[v] + leading
            if run.held[best] >= g.places[v] or run.tokens[best] + size > g.room[best]:
                return False
        else:
            for k in range(g.first[v], g.first[v + 1]):
                fits = run.held[k] < g.places[v] and run.tokens[k] + size <= g.room[k]
                if fits and (best < 0 or run.held[k] < run.held[best]):
                    best = k
            if best < 0:
                return False
            leading = best - g.first[v]
        run.own[v, r] = best - g.first[v]
    for v in range(first, end):
        if g.sticky[v]:
            k = g.first[v] + run.own[v, r]
            run.held[k] += 1
            run.tokens[k] += size
    return True


@inlined_kernel
def _release_replicas(g: Graph, p: Passes, run: ReplayState, r: int, t: float) -> None:
    """Release the replicas of request ``r``, which is done at time ``t``."""
    run.finish[r] = t
    for v in range(g.span[p.service[r]], g.span[p.service[r] + 1]):
        if g.sticky[v]:
            k = g.first[v] + run.own[v, r]
            run.held[k] -= 1
            run.tokens[k] -= p.isl[r] + p.passes[r]


@inlined_kernel
def _deliver(g: Graph, run: ReplayState, v: int, first: int) -> None:
    """Deliver a batch of station ``v`` to stations whose predecessors all delivered it."""
    r = first
    while r >= 0:
        following = run.after[v, r]
        for i in range(g.child[v], g.child[v + 1]):
            w = g.children[i]
            run.need[r, w] -= 1
            if run.need[r, w] == 0:
                _enqueue(g, run, w, r)
        r = following


@inlined_kernel
def _start_transfer(run: ReplayState, v: int, first: int, lands: float) -> None:
    """Start the transfer of a finished batch, which arrives at ``lands``."""
    run.count[FREE] -= 1
    slot = run.free[run.count[FREE]]
    run.flight[slot, STATION], run.flight[slot, FIRST] = v, first
    i = run.count[FLYING]
    run.count[FLYING] += 1
    heap = run.flights
    while i > 0 and heap[(i - 1) // 2, LANDS] > lands:
        heap[i, LANDS], heap[i, SLOT] = heap[(i - 1) // 2, LANDS], heap[(i - 1) // 2, SLOT]
        i = (i - 1) // 2
    heap[i, LANDS], heap[i, SLOT] = lands, slot


@inlined_kernel
def _finish_transfer(run: ReplayState) -> int:
    """Remove the first transfer to arrive, and return its slot."""
    heap = run.flights
    slot = int(heap[0, SLOT])
    run.count[FLYING] -= 1
    n = run.count[FLYING]
    lands, last = heap[n, LANDS], heap[n, SLOT]
    i = 0
    while True:
        c = 2 * i + 1
        if c >= n:
            break
        if c + 1 < n and heap[c + 1, LANDS] < heap[c, LANDS]:
            c += 1
        if heap[c, LANDS] >= lands:
            break
        heap[i, LANDS], heap[i, SLOT] = heap[c, LANDS], heap[c, SLOT]
        i = c
    heap[i, LANDS], heap[i, SLOT] = lands, last
    run.free[run.count[FREE]] = slot
    run.count[FREE] += 1
    return slot


@inlined_kernel
def _finish_batch(g: Graph, p: Passes, run: ReplayState, k: int, t: float) -> int:
    """End the batch of replica ``k``; return its first request if it needs no transfer, else -1.

    Also end the pass of requests that visited every station, and start the transfer to the next
    stations.
    """
    v, first = g.station[k], run.busy[k]
    run.busy[k] = -1
    _change_load(g, run, k, -1.0, t)
    _update_end(run, k, NEVER)
    if g.sticky[v]:
        q = k
    else:
        q = g.first[v]
        run.idle[g.first[v] + run.idles[v]] = k
        run.idles[v] += 1
    if run.waiting[q] > 0:
        run.kicked[run.kicks[0]] = q
        run.kicks[0] += 1
    rows, r = 0.0, first
    while r >= 0:
        following = run.after[v, r]
        rows += 1.0 if g.decodes[v] else float(p.isl[r])
        run.left[r] -= 1
        if run.left[r] == 0:
            run.done[r] += 1
            if run.done[r] < p.passes[r]:
                run.again[run.count[AGAIN]] = r
                run.count[AGAIN] += 1
            else:
                _release_replicas(g, p, run, r, t)
        r = following
    goes_on = -1
    if g.child[v] < g.child[v + 1]:
        sent_s = t + g.hop_s[v]
        if g.row_s[v] > 0:
            d = g.device[g.shard[k]]
            run.link_free[d] = max(t, run.link_free[d]) + rows * g.row_s[v]
            sent_s = run.link_free[d] + g.hop_s[v]
        if sent_s > t:
            _start_transfer(run, v, first, sent_s)
        else:
            goes_on = first
    return int(goes_on)


@cached_kernel
def _replay_loop(g: Graph, p: Passes, run: ReplayState) -> None:
    """Process all events of a replay."""
    n = p.arrival_s.size
    coming = 0  # next arrival
    while True:
        # At equal times, ends of batches come first, then transfers, then arrivals.
        arrives = p.arrival_s[coming] if coming < n else NEVER
        ends = run.tree[1]
        lands = run.flights[0, LANDS] if run.count[FLYING] > 0 else NEVER
        t = min(arrives, ends, lands)
        if t == NEVER:
            break
        v, first = 0, -1
        if ends == t:
            k = _earliest_end(run)
            v = g.station[k]
            first = _finish_batch(g, p, run, k, t)
        elif lands == t:
            slot = _finish_transfer(run)
            v, first = run.flight[slot, STATION], run.flight[slot, FIRST]
        else:
            coming += 1
        if first >= 0:
            _deliver(g, run, v, first)
        # Requests with another pass come before new admissions.
        for again in range(run.count[AGAIN]):
            _begin_pass(g, p, run, run.again[again])
        for service in range(run.line.size):
            r = run.line[service]
            while 0 <= r < coming and _assign_replicas(g, p, run, r):
                _begin_pass(g, p, run, r)
                r = p.following[r]
                run.line[service] = r
        run.count[AGAIN] = 0
        _start_free_replicas(g, p, run, t)


def replay(g: Graph, p: Passes, devices: int, finish: FloatArray) -> int:
    """Replay all requests; write completion times to ``finish``, return the station visits.

    NaN means that the request never fitted.
    """
    run = initial_state(g, p, devices, finish)
    _replay_loop(g, p, run)
    return int(run.count[VISITS])
