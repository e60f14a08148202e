"""Requests through a graph of stations, compiled: what plans of every level are judged by.

A station is an operator, a run of layers, a pipeline stage or a whole replica, with replicas on
devices. A request makes one pass (a prompt) or one per token (a sequence that decodes); a pass
visits every station once, after those before it in the graph, for the work of all layers that the
station runs. A replica that is free takes what waits for it, first come first served, up to its
batch; how long that takes is the curve of the station at the tokens, pairs and KV cache of just
these requests. Stations that keep KV cache are sticky: a request stays on the replica it was given
when it was admitted, the one with fewest requests. Sequences are admitted first come first served
while every sticky station has a place and room for the whole of their KV cache.

What runs on a device at an instant shares it: all of it takes max(1, sum of shares of arithmetic,
sum of shares of bandwidth) times as long, or by measured slowdowns of pairs. A batch that goes on
crosses the sender's link after those before it, and arrives after the latency of its hops.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from simulation.compiled import cached_kernel, source_stamp
from simulation.performance.curves import iteration_seconds

NEVER = np.inf
# Part of the loop that calls them: handing on this many arrays costs more than most of these do.
_inlined: Any = njit(inline="always", nogil=True, error_model="numpy")


class Graph(NamedTuple):
    """Stations ``[V]`` and what comes after each; replicas ``[Q]`` and shards in their order."""

    curves: Any  # numbers of all curves in a row
    curve: Any  # [V + 1] where each begins
    batch: Any  # [V] most requests of a batch
    sticky: Any  # [V]
    places: Any  # [V] requests that a sticky replica holds at once
    room: Any  # [Q] tokens of KV cache that a sticky one holds
    hop_s: Any  # [V] latency of handing on
    row_s: Any  # [V] seconds on the sender's link per token of a prompt, or per sequence
    before: Any  # [V] how many stations come before it
    child: Any  # [V + 1] and
    children: Any  # what comes after each
    first: Any  # [V + 1] its replicas
    station: Any  # [Q]
    shard: Any  # [Q + 1] and
    device: Any  # the devices of a replica
    home: Any  # [D + 1] and
    housed: Any  # the replicas of a device
    compute: Any  # [V] share of a device's arithmetic while it runs
    bandwidth: Any  # [V]
    beside: Any  # [V, V] measured: what u's running adds to v's time; empty: by shares


class Passes(NamedTuple):
    """Requests ``[N]`` in the order they come."""

    arrival_s: Any
    isl: Any
    passes: Any  # 1, or tokens that are decoded
    decodes: bool
    aligned: bool  # a request's replica has the same number at every station


class _Run(NamedTuple):
    """Everything that changes."""

    after: Any  # [V, N] who waits behind, or is in the same batch
    head: Any  # [queues]
    tail: Any
    waiting: Any
    need: Any  # [N, V] stations before that are not done
    left: Any  # [N] stations of the pass that are not done
    done: Any  # [N] passes
    own: Any  # [V, N] replica of a sticky station
    held: Any  # [Q] requests
    tokens: Any  # [Q] of KV cache
    busy: Any  # [Q] first of its batch, -1: idle
    work: Any  # [Q] seconds alone that are left
    since: Any  # [Q]
    slow: Any  # [Q]
    tree: Any  # [2 W] earliest end of replicas
    idle: Any  # [Q] of each station a stack
    idles: Any  # [V]
    compute: Any  # [D] in use
    bandwidth: Any
    active: Any  # [D, V] empty without measured slowdowns
    link_free: Any  # [D]
    flights: Any  # [F, 2] heap: when, slot
    flight: Any  # [F, 2] station, first of the batch
    free: Any  # slots
    count: Any  # [4] flights, free slots, visits, passes that begin
    again: Any  # [N] requests whose next pass begins
    kicked: Any  # queues to look at
    kicks: Any  # [1]
    finish: Any  # [N]


@_inlined
def _note(run: _Run, k: int, end: float) -> None:
    tree, i = run.tree, run.tree.size // 2 + k
    tree[i] = end
    i //= 2
    while i >= 1:
        tree[i] = min(tree[2 * i], tree[2 * i + 1])
        i //= 2


@_inlined
def _earliest(run: _Run) -> int:
    tree, i, w = run.tree, 1, run.tree.size // 2
    while i < w:
        i = 2 * i if tree[2 * i] <= tree[2 * i + 1] else 2 * i + 1
    return int(i - w)


@_inlined
def _slowness(g: Graph, run: _Run, k: int) -> float:
    worst, v = 1.0, g.station[k]
    for i in range(g.shard[k], g.shard[k + 1]):
        d = g.device[i]
        if g.beside.shape[0]:
            more = 1.0 - g.beside[v, v]
            for u in range(g.beside.shape[0]):
                more += g.beside[v, u] * run.active[d, u]
            worst = max(worst, more)
        else:
            worst = max(worst, run.compute[d], run.bandwidth[d])
    return float(worst)


@_inlined
def _share(g: Graph, run: _Run, k: int, sign: float, t: float) -> None:
    """Replica ``k`` begins or ends; what shares its devices goes on at another pace."""
    v = g.station[k]
    for i in range(g.shard[k], g.shard[k + 1]):
        d = g.device[i]
        run.compute[d] += sign * g.compute[v]
        run.bandwidth[d] += sign * g.bandwidth[v]
        if g.beside.shape[0]:
            run.active[d, v] += sign
    for i in range(g.shard[k], g.shard[k + 1]):
        d = g.device[i]
        for j in range(g.home[d], g.home[d + 1]):
            q = g.housed[j]
            if run.busy[q] < 0 or q == k:
                continue
            slow = _slowness(g, run, q)
            if slow != run.slow[q]:
                run.work[q] -= (t - run.since[q]) / run.slow[q]
                run.since[q], run.slow[q] = t, slow
                _note(run, q, t + max(run.work[q], 0.0) * slow)


@_inlined
def _queue_of(g: Graph, run: _Run, v: int, r: int) -> int:
    return int(g.first[v] + run.own[v, r]) if g.sticky[v] else int(g.first[v])


@_inlined
def _wait(g: Graph, run: _Run, v: int, r: int) -> None:
    q = _queue_of(g, run, v, r)
    run.after[v, r] = -1
    if run.waiting[q] == 0:
        run.head[q] = r
        run.kicked[run.kicks[0]] = q
        run.kicks[0] += 1
    else:
        run.after[v, run.tail[q]] = r
    run.tail[q] = r
    run.waiting[q] += 1


@_inlined
def _begin(g: Graph, p: Passes, run: _Run, q: int, k: int, t: float) -> None:
    """Replica ``k`` takes a batch from queue ``q``."""
    v = g.station[k]
    n = min(run.waiting[q], g.batch[v])
    first = run.head[q]
    r, last = first, first
    tokens, pairs = 0.0, 0.0
    for _ in range(n):
        isl = float(p.isl[r])
        if p.decodes:
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
    if p.decodes:
        seconds = iteration_seconds(curve, float(n), tokens, 0.0, 0.0)
    else:
        seconds = iteration_seconds(curve, 0.0, 0.0, tokens, pairs)
    run.count[2] += n
    run.busy[k] = first
    run.work[k], run.since[k] = seconds, t
    _share(g, run, k, 1.0, t)
    run.slow[k] = _slowness(g, run, k)
    _note(run, k, t + seconds * run.slow[k])


@_inlined
def _look(g: Graph, p: Passes, run: _Run, t: float) -> None:
    """Free replicas take what waits."""
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
            _begin(g, p, run, q, k, t)


@_inlined
def _pass(g: Graph, run: _Run, r: int) -> None:
    """A pass of request ``r`` begins."""
    run.left[r] = g.batch.size
    for v in range(g.batch.size):
        run.need[r, v] = g.before[v]
        if g.before[v] == 0:
            _wait(g, run, v, r)


@_inlined
def _admit(g: Graph, p: Passes, run: _Run, r: int) -> bool:
    """Give request ``r`` a replica of every sticky station; False where one has no room."""
    size = p.isl[r] + p.passes[r]
    leading = -1
    for v in range(g.batch.size):
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
    for v in range(g.batch.size):
        if g.sticky[v]:
            k = g.first[v] + run.own[v, r]
            run.held[k] += 1
            run.tokens[k] += size
    return True


@_inlined
def _leave(g: Graph, p: Passes, run: _Run, r: int, t: float) -> None:
    run.finish[r] = t
    for v in range(g.batch.size):
        if g.sticky[v]:
            k = g.first[v] + run.own[v, r]
            run.held[k] -= 1
            run.tokens[k] -= p.isl[r] + p.passes[r]


@_inlined
def _deliver(g: Graph, run: _Run, v: int, first: int) -> None:
    """A batch of station ``v`` has come to where it goes on."""
    r = first
    while r >= 0:
        following = run.after[v, r]
        for i in range(g.child[v], g.child[v + 1]):
            w = g.children[i]
            run.need[r, w] -= 1
            if run.need[r, w] == 0:
                _wait(g, run, w, r)
        r = following


@_inlined
def _fly(run: _Run, v: int, first: int, at: float) -> None:
    run.count[1] -= 1
    slot = run.free[run.count[1]]
    run.flight[slot, 0], run.flight[slot, 1] = v, first
    i = run.count[0]
    run.count[0] += 1
    heap = run.flights
    while i > 0 and heap[(i - 1) // 2, 0] > at:
        heap[i, 0], heap[i, 1] = heap[(i - 1) // 2, 0], heap[(i - 1) // 2, 1]
        i = (i - 1) // 2
    heap[i, 0], heap[i, 1] = at, slot


@_inlined
def _land(run: _Run) -> int:
    """The slot of the flight that lands first."""
    heap = run.flights
    slot = int(heap[0, 1])
    run.count[0] -= 1
    n = run.count[0]
    at, last = heap[n, 0], heap[n, 1]
    i = 0
    while True:
        c = 2 * i + 1
        if c >= n:
            break
        if c + 1 < n and heap[c + 1, 0] < heap[c, 0]:
            c += 1
        if heap[c, 0] >= at:
            break
        heap[i, 0], heap[i, 1] = heap[c, 0], heap[c, 1]
        i = c
    heap[i, 0], heap[i, 1] = at, last
    run.free[run.count[1]] = slot
    run.count[1] += 1
    return slot


@_inlined
def _end(g: Graph, p: Passes, run: _Run, k: int, t: float) -> int:
    """Replica ``k`` is done with its batch; the first of it where it goes on at once, else -1."""
    v, first = g.station[k], run.busy[k]
    run.busy[k] = -1
    _share(g, run, k, -1.0, t)
    _note(run, k, NEVER)
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
        rows += 1.0 if p.decodes else float(p.isl[r])
        run.left[r] -= 1
        if run.left[r] == 0:
            run.done[r] += 1
            if run.done[r] < p.passes[r]:
                run.again[run.count[3]] = r
                run.count[3] += 1
            else:
                _leave(g, p, run, r, t)
        r = following
    goes_on = -1
    if g.child[v] < g.child[v + 1]:
        at = t + g.hop_s[v]
        if g.row_s[v] > 0:
            d = g.device[g.shard[k]]
            run.link_free[d] = max(t, run.link_free[d]) + rows * g.row_s[v]
            at = run.link_free[d] + g.hop_s[v]
        if at > t:
            _fly(run, v, first, at)
        else:
            goes_on = first
    return int(goes_on)


@_inlined
def _replayed(g: Graph, p: Passes, run: _Run) -> None:
    n = p.arrival_s.size
    coming = 0  # next to come
    lining = 0  # next to be admitted
    while True:
        arrives = p.arrival_s[coming] if coming < n else NEVER
        ends = run.tree[1]
        lands = run.flights[0, 0] if run.count[0] > 0 else NEVER
        t = min(arrives, ends, lands)
        if t == NEVER:
            break
        v, first = 0, -1
        if ends == t:
            k = _earliest(run)
            v = g.station[k]
            first = _end(g, p, run, k, t)
        elif lands == t:
            slot = _land(run)
            v, first = run.flight[slot, 0], run.flight[slot, 1]
        else:
            coming += 1
        if first >= 0:
            _deliver(g, run, v, first)
        # Those that go on with another pass come before those that are let in.
        again = 0
        while True:
            if again < run.count[3]:
                r = run.again[again]
                again += 1
            elif lining < coming and _admit(g, p, run, lining):
                r = lining
                lining += 1
            else:
                break
            _pass(g, run, r)
        run.count[3] = 0
        _look(g, p, run, t)


def _entry(stamp: int) -> Any:
    @cached_kernel
    def replay(g: Graph, p: Passes, devices: int, finish: Any) -> int:
        """When each request is done with its last pass, into ``finish``; visits of requests to
        stations. NaN: it never fitted."""
        assert stamp
        n, stations, replicas = p.arrival_s.size, g.batch.size, g.station.size
        width = 1
        while width < max(2, replicas):
            width *= 2
        flights = n * 2 + 16
        idle = np.zeros(replicas, np.int64)
        idles = np.zeros(stations, np.int64)
        for v in range(stations):
            for k in range(g.first[v + 1] - 1, g.first[v] - 1, -1):
                idle[g.first[v] + idles[v]] = k
                idles[v] += 1
        finish[:] = np.nan
        run = _Run(
            np.full((stations, n), -1, np.int64),
            np.full(replicas, -1, np.int64),
            np.full(replicas, -1, np.int64),
            np.zeros(replicas, np.int64),
            np.zeros((n, stations), np.int64),
            np.zeros(n, np.int64),
            np.zeros(n, np.int64),
            np.zeros((stations, n), np.int64),
            np.zeros(replicas, np.int64),
            np.zeros(replicas),
            np.full(replicas, -1, np.int64),
            np.zeros(replicas),
            np.zeros(replicas),
            np.ones(replicas),
            np.full(2 * width, np.inf),
            idle,
            idles,
            np.zeros(devices),
            np.zeros(devices),
            np.zeros((devices, g.beside.shape[0])),
            np.zeros(devices),
            np.zeros((flights, 2)),
            np.zeros((flights, 2), np.int64),
            np.arange(flights),
            np.array([0, flights, 0, 0]),
            np.zeros(n, np.int64),
            np.zeros(4 * replicas + 4 * stations + 16, np.int64),
            np.zeros(1, np.int64),
            finish,
        )
        _replayed(g, p, run)
        return int(run.count[2])

    return replay


replay = _entry(source_stamp("compiled.py", "performance/curves.py", "provisioning/stations.py"))
