"""Simulate requests through a graph of stations, compiled, to check plans of every level.

A station is an operator, a run of layers, a pipeline stage or a whole replica, with replicas on
devices. A request makes one pass (a prompt), or one per token (a decoding sequence). A pass visits
every station once, after its predecessors in the graph, for the work of all its layers.
Letters: v, u and w are stations, k a replica, q the replica whose queue is meant, r a request and d
a device, all as indices.

A chunked request makes a pass per chunk of its prompt, then one per token. Its prompt passes skip
attention of decodes, and its decode passes skip that of prompts. The two kinds share batches at all
other stations. The KV cache of a prompt moves to decode attention without delay.

A free replica processes waiting requests up to its batch: first come, first served, or shortest
prompts first. The duration is the station's curve at the tokens, pairs and KV cache of these
requests. Stations with KV cache are sticky: a request stays on the replica that it got at
admission, the one with the fewest requests. Sequences are admitted first come, first served. A
sequence is admitted if every sticky station has a replica with fewer than its maximum of sequences,
and with memory for the whole KV cache.

Several services may share devices: each has its own stations and its own queue of requests.
Replicas that run on a device at the same time share it. All of them slow down by max(1, sum of
arithmetic shares, sum of bandwidth shares), or by measured slowdowns of pairs. A finished batch
crosses the sender's link after earlier ones, and arrives after the latency of its hops.
"""

from typing import Any

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.compiler import cached_kernel, inlined_kernel, kernel
from simulation.performance.curves import iteration_seconds
from simulation.provisioning.station_state import Graph, Passes, ReplayState, initial_state

NEVER = np.inf
FLYING, FREE, VISITED, NEXT_PASS = range(4)  # indices of ReplayState.count
LANDS, SLOT = range(2)  # columns of ReplayState.flights, a heap
STATION, FIRST = range(2)  # columns of ReplayState.flight
PROMPT, DECODE = range(2)  # columns of Graph.visited and Graph.before


@inlined_kernel
def _update_end(run: ReplayState, k: int, end: float) -> None:
    """Set the end time of replica ``k`` in the tree; a node has the minimum of its children."""
    tree, i = run.tree, run.tree.size // 2 + k
    tree[i] = end
    i //= 2
    while i >= 1:
        tree[i] = min(tree[2 * i], tree[2 * i + 1])
        i //= 2


@inlined_kernel
def _earliest_end(run: ReplayState) -> int:
    """Return the replica whose batch ends first, from the tree of end times."""
    tree, i, leaves = run.tree, 1, run.tree.size // 2
    while i < leaves:
        i = 2 * i if tree[2 * i] <= tree[2 * i + 1] else 2 * i + 1
    return int(i - leaves)


@inlined_kernel
def _slowdown(graph: Graph, run: ReplayState, k: int) -> float:
    """Return the present slowdown factor of replica ``k``: that of its most loaded device."""
    worst, v = 1.0, graph.station[k]
    for i in range(graph.shard[k], graph.shard[k + 1]):
        d = graph.device[i]
        if graph.interference.shape[0]:
            slowdown = 1.0 - graph.interference[v, v]  # the sum below contains the replica itself
            for u in range(graph.interference.shape[0]):
                slowdown += graph.interference[v, u] * run.active[d, u]
            worst = max(worst, slowdown)
        else:
            worst = max(worst, run.compute[d], run.bandwidth[d])
    return float(worst)


@inlined_kernel
def _change_load(graph: Graph, run: ReplayState, k: int, sign: float, t: float) -> None:
    """Add (``sign`` 1) or remove (-1) the load of replica ``k`` on its devices at time ``t``.

    Other replicas on these devices change their speed, so their end times are updated.
    """
    v = graph.station[k]
    for i in range(graph.shard[k], graph.shard[k + 1]):
        d = graph.device[i]
        run.compute[d] += sign * graph.compute[v]
        run.bandwidth[d] += sign * graph.bandwidth[v]
        if graph.interference.shape[0]:
            run.active[d, v] += sign
    for i in range(graph.shard[k], graph.shard[k + 1]):
        d = graph.device[i]
        for j in range(graph.home[d], graph.home[d + 1]):
            q = graph.housed[j]
            if run.busy[q] < 0 or q == k:
                continue
            slow = _slowdown(graph, run, q)
            if slow != run.slow[q]:
                # Account for the work done at the old speed before the speed changes.
                run.work[q] -= (t - run.since[q]) / run.slow[q]
                run.since[q], run.slow[q] = t, slow
                _update_end(run, q, t + max(run.work[q], 0.0) * slow)


@inlined_kernel
def _queue_number(graph: Graph, run: ReplayState, v: int, r: int) -> int:
    """Return the queue of request ``r`` at station ``v``, as a replica's index.

    At a sticky station it is the request's own replica. Other stations have one queue, which has
    the index of their first replica.
    """
    return int(graph.first[v] + run.own[v, r]) if graph.sticky[v] else int(graph.first[v])


@inlined_kernel
def _note_queue(run: ReplayState, q: int) -> None:
    """Note queue ``q`` in ``to_check``, since a batch of its requests may be able to start."""
    run.to_check[run.checks[0]] = q
    run.checks[0] += 1


@inlined_kernel
def _enqueue(graph: Graph, run: ReplayState, v: int, r: int) -> None:
    """Add request ``r`` to its queue at station ``v``."""
    q = _queue_number(graph, run, v, r)
    run.after[v, r] = -1
    if run.waiting[q] == 0:
        run.head[q] = r
        _note_queue(run, q)
    else:
        run.after[v, run.tail[q]] = r
    run.tail[q] = r
    run.waiting[q] += 1


@kernel
def _sort_queue(
    after: IntArray, head: IntArray, tail: IntArray, key: FloatArray, v: int, q: int
) -> None:
    """Sort the waiting requests of queue ``q`` of station ``v`` by ``key``, by insertion sort.

    The queue is a linked list: ``after [v, r]`` is the request behind r. Ties are in order of
    arrival. Sorting happens when a batch starts. At each arrival, it would make the whole replay
    three times as slow.
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


@kernel
def _append(after: Any, v: int, first: int, last: int, r: int) -> int:
    """Append request ``r`` to a list of requests of station ``v``; return the first of the list.

    ``after [v, r]`` is the request behind r. ``first`` and ``last`` are -1 for an empty list.
    """
    if last < 0:
        return r
    after[v, last] = r
    return first


@inlined_kernel
def _in_prompt(requests: Passes, run: ReplayState, r: int) -> bool:
    """Return whether the present pass of request ``r`` computes a part of its prompt."""
    return bool(run.done[r] < requests.chunks[r])


@inlined_kernel
def _take_batch(graph: Graph, requests: Passes, run: ReplayState, q: int, v: int) -> Any:
    """Remove the next batch from queue ``q`` of station ``v``, in the order of the queue.

    Returns its first request (``run.after`` links the others), its decoding sequences, their KV
    tokens, its prompt tokens, and their query-key pairs. Without a token budget of the station, a
    batch has up to ``graph.batch`` requests. With one, it has up to ``graph.batch`` sequences, and
    prompts up to the budget; the first prompt always fits.
    """
    after, max_batch, budget = run.after, graph.batch[v], graph.budget[v]
    # Ends of two linked lists: the batch, and the requests that were passed over.
    first, last, first_waiting, last_waiting = -1, -1, -1, -1
    decodes, prompts, context, tokens, pairs = 0, 0, 0.0, 0.0, 0.0
    has_budget, prompts_full = budget < NEVER, False
    r = run.head[q]
    while r >= 0:
        is_full = decodes + prompts >= max_batch
        if has_budget:  # prompts join ``max_batch`` sequences
            is_full = is_full and prompts_full and decodes >= max_batch
        if is_full:
            break
        following = after[v, r]
        if _in_prompt(requests, run, r):
            size = float(requests.isl[r]) / requests.chunks[r]  # tokens of its next chunk
            exceeds = has_budget and prompts > 0 and tokens + size > budget
            # A later, shorter prompt must not overtake one that did not fit.
            prompts_full = prompts_full or exceeds
            taken = not prompts_full
            if taken:
                prompts += 1
                tokens += size
                # Each token attends to the chunks before, and to half of its own on average.
                pairs += size * (run.done[r] * size + 0.5 * size)
        else:
            taken = decodes < max_batch
            if taken:
                decodes += 1
                context += float(requests.isl[r]) + 1.0 + run.done[r] - requests.chunks[r]
        if taken:
            first, last = _append(after, v, first, last, r), r
        else:
            first_waiting = _append(after, v, first_waiting, last_waiting, r)
            last_waiting = r
        r = following
    after[v, last] = -1
    # The queue keeps what was passed over, then what was not reached (from ``r`` on).
    if last_waiting < 0:
        run.head[q] = r
    else:
        run.head[q] = first_waiting
        after[v, last_waiting] = r
        if r < 0:
            run.tail[q] = last_waiting
    run.waiting[q] -= decodes + prompts
    run.count[VISITED] += decodes + prompts
    return first, decodes, context, tokens, pairs


@inlined_kernel
def _start_batch(
    graph: Graph, requests: Passes, run: ReplayState, q: int, k: int, t: float
) -> None:
    """Start a batch of requests from queue ``q`` on replica ``k`` at time ``t``."""
    v = graph.station[k]
    if requests.ordered and _in_prompt(requests, run, run.head[q]):
        _sort_queue(run.after, run.head, run.tail, requests.key, v, q)
    first, decodes, context, tokens, pairs = _take_batch(graph, requests, run, q, v)
    if run.waiting[q] > 0:
        _note_queue(run, q)
    curve = graph.curves[graph.curve[v] : graph.curve[v + 1]]
    seconds = iteration_seconds(curve, float(decodes), context, tokens, pairs)
    run.busy[k] = first
    run.work[k], run.since[k] = seconds, t
    _change_load(graph, run, k, 1.0, t)
    run.slow[k] = _slowdown(graph, run, k)
    _update_end(run, k, t + seconds * run.slow[k])


@inlined_kernel
def _start_free_replicas(graph: Graph, requests: Passes, run: ReplayState, t: float) -> None:
    """Start batches of waiting requests on free replicas."""
    while run.checks[0] > 0:
        run.checks[0] -= 1
        q = run.to_check[run.checks[0]]
        if run.waiting[q] == 0:
            continue
        v, k = graph.station[q], -1
        if graph.sticky[v]:
            k = q if run.busy[q] < 0 else -1
        elif run.idles[v] > 0:
            run.idles[v] -= 1
            k = run.idle[graph.first[v] + run.idles[v]]
        if k >= 0:
            _start_batch(graph, requests, run, q, k, t)


@inlined_kernel
def _begin_pass(graph: Graph, requests: Passes, run: ReplayState, r: int) -> None:
    """Begin a pass of request ``r``: enqueue it at the stations without predecessors."""
    first, end = graph.span[requests.service[r]], graph.span[requests.service[r] + 1]
    kind = PROMPT if _in_prompt(requests, run, r) else DECODE
    run.left[r] = 0
    for v in range(first, end):
        if graph.visited[v, kind]:
            run.left[r] += 1
            run.need[r, v] = graph.before[v, kind]
            if graph.before[v, kind] == 0:
                _enqueue(graph, run, v, r)


@inlined_kernel
def _reserved_kv_tokens(graph: Graph, requests: Passes, v: int, r: int) -> float:
    """Return the KV-cache tokens that request ``r`` reserves on its replica of station ``v``.

    The station is sticky: the request stays on that replica. A station that decodes do not visit
    reserves the prompt only, others the whole sequence.
    """
    if not graph.visited[v, DECODE]:
        return float(requests.isl[r])
    return float(requests.isl[r] + max(requests.passes[r] - requests.chunks[r], 1))


@inlined_kernel
def _assign_replicas(graph: Graph, requests: Passes, run: ReplayState, r: int) -> bool:
    """Give request ``r`` a replica at every sticky station; return False if one is full.

    It is the replica with the fewest requests among those that are not full. If requests are
    ``aligned``, all stations use the replica with the number chosen at the first one.
    """
    first, end = graph.span[requests.service[r]], graph.span[requests.service[r] + 1]
    leading = -1  # number of the replica within its station; -1: none chosen yet
    for v in range(first, end):
        if not graph.sticky[v]:
            continue
        best, size = -1, _reserved_kv_tokens(graph, requests, v, r)
        if requests.aligned and leading >= 0:
            best = graph.first[v] + leading
            if run.held[best] >= graph.places[v] or run.tokens[best] + size > graph.room[best]:
                return False
        else:
            for k in range(graph.first[v], graph.first[v + 1]):
                fits = run.held[k] < graph.places[v] and run.tokens[k] + size <= graph.room[k]
                if fits and (best < 0 or run.held[k] < run.held[best]):
                    best = k
            if best < 0:
                return False
            leading = best - graph.first[v]
        run.own[v, r] = best - graph.first[v]
    for v in range(first, end):
        if graph.sticky[v]:
            k = graph.first[v] + run.own[v, r]
            run.held[k] += 1
            run.tokens[k] += _reserved_kv_tokens(graph, requests, v, r)
    return True


@inlined_kernel
def _release_replicas(
    graph: Graph, requests: Passes, run: ReplayState, r: int, decodes: bool
) -> None:
    """Release the replicas of request ``r`` at its sticky stations.

    With ``decodes``, at those that decoding visits, else at those that only prompts visit.
    """
    for v in range(graph.span[requests.service[r]], graph.span[requests.service[r] + 1]):
        if graph.sticky[v] and graph.visited[v, DECODE] == decodes:
            k = graph.first[v] + run.own[v, r]
            run.held[k] -= 1
            run.tokens[k] -= _reserved_kv_tokens(graph, requests, v, r)


@inlined_kernel
def _deliver(graph: Graph, requests: Passes, run: ReplayState, v: int, first: int) -> None:
    """Enqueue the requests of a finished batch of station ``v`` at the next stations.

    A request is enqueued at a station once all predecessors of that station are done. ``first`` is
    the first request of the batch.
    """
    r = first
    while r >= 0:
        following = run.after[v, r]
        kind = PROMPT if _in_prompt(requests, run, r) else DECODE
        for i in range(graph.child[v], graph.child[v + 1]):
            w = graph.children[i]
            if graph.visited[w, kind]:
                run.need[r, w] -= 1
                if run.need[r, w] == 0:
                    _enqueue(graph, run, w, r)
        r = following


@inlined_kernel
def _start_transfer(run: ReplayState, v: int, first: int, lands: float) -> None:
    """Start the transfer of a finished batch of station ``v``, which arrives at time ``lands``."""
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
    """Remove the transfer that arrives first, and return its slot in ``run.flight``."""
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
def _finish_pass(graph: Graph, requests: Passes, run: ReplayState, r: int, t: float) -> None:
    """End a pass of request ``r`` at time ``t``: note its next pass, or its end.

    Its replicas are released after the last pass, and those of prompts after the last chunk.
    """
    run.done[r] += 1
    if run.done[r] == requests.passes[r]:
        run.finish[r] = t
        _release_replicas(graph, requests, run, r, True)
        return
    run.next_pass[run.count[NEXT_PASS]] = r
    run.count[NEXT_PASS] += 1
    if run.done[r] == requests.chunks[r]:  # that was the last chunk of the prompt
        run.prefilled[r] = t
        _release_replicas(graph, requests, run, r, False)


@inlined_kernel
def _finish_batch(graph: Graph, requests: Passes, run: ReplayState, k: int, t: float) -> int:
    """End the batch of replica ``k``, and start its transfer to the next stations.

    Returns the first request of the batch if it has arrived there at once, else -1. Also ends the
    pass of requests that have visited every station.
    """
    v, first = graph.station[k], run.busy[k]
    run.busy[k] = -1
    _change_load(graph, run, k, -1.0, t)
    _update_end(run, k, NEVER)
    if graph.sticky[v]:
        q = k
    else:
        q = graph.first[v]
        run.idle[graph.first[v] + run.idles[v]] = k
        run.idles[v] += 1
    if run.waiting[q] > 0:
        _note_queue(run, q)
    rows, r = 0.0, first  # rows: tokens that the batch sends to the next stations
    while r >= 0:
        following = run.after[v, r]
        in_prompt = _in_prompt(requests, run, r)
        rows += float(requests.isl[r]) / requests.chunks[r] if in_prompt else 1.0
        run.left[r] -= 1
        if run.left[r] == 0:
            _finish_pass(graph, requests, run, r, t)
        r = following
    arrived = -1
    if graph.child[v] < graph.child[v + 1]:
        arrives_s = t + graph.hop_s[v]
        if graph.row_s[v] > 0:
            d = graph.device[graph.shard[k]]
            run.link_free[d] = max(t, run.link_free[d]) + rows * graph.row_s[v]
            arrives_s = run.link_free[d] + graph.hop_s[v]
        if arrives_s > t:
            _start_transfer(run, v, first, arrives_s)
        else:
            arrived = first
    return int(arrived)


@cached_kernel
def _replay_loop(graph: Graph, requests: Passes, run: ReplayState) -> None:
    """Process all events of a replay in order of time: ends of batches, transfers, arrivals."""
    n = requests.arrival_s.size
    coming = 0  # next arrival
    while True:
        # At equal times, ends of batches come first, then transfers, then arrivals.
        arrives = requests.arrival_s[coming] if coming < n else NEVER
        ends = run.tree[1]
        lands = run.flights[0, LANDS] if run.count[FLYING] > 0 else NEVER
        t = min(arrives, ends, lands)
        if t == NEVER:
            break
        v, first = 0, -1
        if ends == t:
            k = _earliest_end(run)
            v = graph.station[k]
            first = _finish_batch(graph, requests, run, k, t)
        elif lands == t:
            slot = _finish_transfer(run)
            v, first = run.flight[slot, STATION], run.flight[slot, FIRST]
        else:
            coming += 1
        if first >= 0:
            _deliver(graph, requests, run, v, first)
        # Requests with another pass come before new admissions.
        for again in range(run.count[NEXT_PASS]):
            _begin_pass(graph, requests, run, run.next_pass[again])
        for service in range(run.next_admitted.size):
            r = run.next_admitted[service]
            while 0 <= r < coming and _assign_replicas(graph, requests, run, r):
                _begin_pass(graph, requests, run, r)
                r = requests.following[r]
                run.next_admitted[service] = r
        run.count[NEXT_PASS] = 0
        _start_free_replicas(graph, requests, run, t)


def replay(graph: Graph, requests: Passes) -> ReplayState:
    """Replay all requests and return the final state.

    ``finish`` and ``prefilled`` have the times at which requests, and the prompts of chunked
    requests, were done. NaN means that the request never fitted in memory.
    """
    run = initial_state(graph, requests)
    _replay_loop(graph, requests, run)
    return run
