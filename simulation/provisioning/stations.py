"""Simulate requests through a graph of stations, compiled, to check plans of every level.

A station is an operator, a run of layers, a pipeline stage or a whole replica, with replicas on
devices. A request makes one pass (a prompt), or one per token (a decoding sequence). A pass visits
every station once, after its predecessors in the graph, for the work of all its layers. Stations,
replicas, requests, devices and queues are indices in compiled code.

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
# Indices of ReplayState.count
IN_TRANSIT, FREE_SLOTS, VISITS, NEXT_PASS = range(4)
ARRIVAL, SLOT = range(2)  # columns of ReplayState.transfer_heap, a heap
STATION, FIRST = range(2)  # columns of ReplayState.transfers
PROMPT, DECODE = range(2)  # columns of Graph.visited and Graph.predecessor_count


@inlined_kernel
def _update_end(run: ReplayState, replica: int, end_s: float) -> None:
    """Set the end time of ``replica`` in the tree; a node has the minimum of its children.

    The root is node 1, the children of node i are 2i and 2i + 1, and replicas are the leaves.
    """
    tree, node = run.end_tree, run.end_tree.size // 2 + replica
    tree[node] = end_s
    node //= 2
    while node >= 1:
        tree[node] = min(tree[2 * node], tree[2 * node + 1])
        node //= 2


@inlined_kernel
def _earliest_end(run: ReplayState) -> int:
    """Return the replica whose batch ends first, from the tree of end times."""
    tree, leaves = run.end_tree, run.end_tree.size // 2
    node = 1  # go from the root to the leaf with the minimum
    while node < leaves:
        left, right = 2 * node, 2 * node + 1
        node = left if tree[left] <= tree[right] else right
    return int(node - leaves)


@inlined_kernel
def _slowdown(graph: Graph, run: ReplayState, replica: int) -> float:
    """Return the present slowdown factor of ``replica``: that of its most loaded device."""
    worst, station = 1.0, graph.station_of[replica]
    for i in range(graph.shard_offset[replica], graph.shard_offset[replica + 1]):
        device = graph.shard_device[i]
        if graph.interference.shape[0]:
            # The sum over running shards contains the replica itself.
            slowdown = 1.0 - graph.interference[station, station]
            for other in range(graph.interference.shape[0]):
                slowdown += graph.interference[station, other] * run.running_shards[device, other]
            worst = max(worst, slowdown)
        else:
            worst = max(worst, run.compute[device], run.bandwidth[device])
    return float(worst)


@inlined_kernel
def _change_load(graph: Graph, run: ReplayState, replica: int, sign: float, now_s: float) -> None:
    """Add (``sign`` 1) or remove (-1) the load of ``replica`` on its devices at ``now_s``.

    Other replicas on these devices change their speed, so their end times are updated.
    """
    station = graph.station_of[replica]
    for i in range(graph.shard_offset[replica], graph.shard_offset[replica + 1]):
        device = graph.shard_device[i]
        run.compute[device] += sign * graph.compute[station]
        run.bandwidth[device] += sign * graph.bandwidth[station]
        if graph.interference.shape[0]:
            run.running_shards[device, station] += sign
    for i in range(graph.shard_offset[replica], graph.shard_offset[replica + 1]):
        device = graph.shard_device[i]
        for j in range(graph.device_offset[device], graph.device_offset[device + 1]):
            other = graph.device_replicas[j]
            if run.batch_head[other] < 0 or other == replica:
                continue
            slowdown = _slowdown(graph, run, other)
            if slowdown != run.slowdown[other]:
                # Account for the work done at the old speed before the speed changes.
                run.work_left_s[other] -= (now_s - run.work_updated_s[other]) / run.slowdown[other]
                run.work_updated_s[other], run.slowdown[other] = now_s, slowdown
                _update_end(run, other, now_s + max(run.work_left_s[other], 0.0) * slowdown)


@inlined_kernel
def _queue_number(graph: Graph, run: ReplayState, station: int, request: int) -> int:
    """Return the queue of ``request`` at ``station``, as a replica's index.

    At a sticky station it is the request's own replica. Other stations have one queue, which has
    the index of their first replica.
    """
    first = graph.first_replica[station]
    return int(first + run.own_number[station, request] if graph.sticky[station] else first)


@inlined_kernel
def _note_queue(run: ReplayState, queue: int) -> None:
    """Note ``queue`` as one from which a batch may be able to start."""
    run.queues_to_check[run.check_count[0]] = queue
    run.check_count[0] += 1


@inlined_kernel
def _enqueue(graph: Graph, run: ReplayState, station: int, request: int) -> None:
    """Add ``request`` to its queue at ``station``."""
    queue = _queue_number(graph, run, station, request)
    run.next_in_list[station, request] = -1
    if run.waiting[queue] == 0:
        run.queue_head[queue] = request
        _note_queue(run, queue)
    else:
        run.next_in_list[station, run.queue_tail[queue]] = request
    run.queue_tail[queue] = request
    run.waiting[queue] += 1


@kernel
def _sort_queue(
    next_in_list: IntArray,
    head: IntArray,
    tail: IntArray,
    key: FloatArray,
    station: int,
    queue: int,
) -> None:
    """Sort the waiting requests of ``queue`` of ``station`` by ``key``, by insertion sort.

    The queue is a linked list: ``next_in_list`` is that of ``ReplayState``, and ``head`` and
    ``tail`` have the ends of all queues. Ties are in order of arrival. Sorting happens when a batch
    starts. At each arrival, it would make the whole replay three times as slow.
    """
    last = head[queue]  # the end of the sorted part
    while next_in_list[station, last] >= 0:
        request = next_in_list[station, last]
        if key[last] <= key[request]:
            last = request
            continue
        # Take the request out, and insert it between ``left`` and ``right``.
        next_in_list[station, last] = next_in_list[station, request]
        left, right = -1, head[queue]
        while key[right] <= key[request]:
            left, right = right, next_in_list[station, right]
        next_in_list[station, request] = right
        if left < 0:
            head[queue] = request
        else:
            next_in_list[station, left] = request
    tail[queue] = last


@kernel
def _append(next_in_list: Any, station: int, head: int, tail: int, request: int) -> int:
    """Append ``request`` to a list of requests of ``station``; return the head of the list.

    ``next_in_list`` is that of ``ReplayState``. ``head`` and ``tail`` are -1 for an empty list.
    """
    if tail < 0:
        return request
    next_in_list[station, tail] = request
    return head


@inlined_kernel
def _in_prompt(requests: Passes, run: ReplayState, request: int) -> bool:
    """Return whether the present pass of ``request`` computes a part of its prompt."""
    return bool(run.passes_done[request] < requests.chunks[request])


@inlined_kernel
def _take_batch(graph: Graph, requests: Passes, run: ReplayState, queue: int, station: int) -> Any:
    """Remove the next batch from ``queue`` of ``station``, in the order of the queue.

    Returns its first request (``run.next_in_list`` links the others), its decoding sequences, their
    KV tokens, its prompt tokens, and their query-key pairs. Without a token budget of the station,
    a batch has up to ``graph.max_batch`` requests. With one, it has up to ``graph.max_batch``
    sequences, and prompts up to the budget; the first prompt always fits.
    """
    next_in_list, max_batch = run.next_in_list, graph.max_batch[station]
    budget = graph.token_budget[station]
    has_budget, prompts_full = budget < NEVER, False
    # Ends of two linked lists: the batch, and the requests that were skipped.
    batch_head, batch_tail, skipped_head, skipped_tail = -1, -1, -1, -1
    decodes, prompts, kv_tokens, prompt_tokens, attention_pairs = 0, 0, 0.0, 0.0, 0.0
    request = run.queue_head[queue]
    while request >= 0:
        is_full = decodes + prompts >= max_batch
        if has_budget:  # prompts join ``max_batch`` sequences
            is_full = is_full and prompts_full and decodes >= max_batch
        if is_full:
            break
        next_request = next_in_list[station, request]
        if _in_prompt(requests, run, request):
            chunk = float(requests.isl[request]) / requests.chunks[request]  # tokens
            exceeds = has_budget and prompts > 0 and prompt_tokens + chunk > budget
            # A later, shorter prompt must not overtake one that did not fit.
            prompts_full = prompts_full or exceeds
            joins = not prompts_full
            if joins:
                prompts += 1
                prompt_tokens += chunk
                # Each token attends to the chunks before, and to half of its own on average.
                attention_pairs += chunk * (run.passes_done[request] * chunk + 0.5 * chunk)
        else:
            joins = decodes < max_batch
            if joins:
                decodes += 1
                kv_tokens += float(requests.isl[request]) + 1.0 + run.passes_done[request]
                kv_tokens -= requests.chunks[request]
        if joins:
            batch_head = _append(next_in_list, station, batch_head, batch_tail, request)
            batch_tail = request
        else:
            skipped_head = _append(next_in_list, station, skipped_head, skipped_tail, request)
            skipped_tail = request
        request = next_request
    next_in_list[station, batch_tail] = -1
    # The queue keeps what was skipped, then what was not reached (from ``request`` on).
    if skipped_tail < 0:
        run.queue_head[queue] = request
    else:
        run.queue_head[queue] = skipped_head
        next_in_list[station, skipped_tail] = request
        if request < 0:
            run.queue_tail[queue] = skipped_tail
    run.waiting[queue] -= decodes + prompts
    run.count[VISITS] += decodes + prompts
    return batch_head, decodes, kv_tokens, prompt_tokens, attention_pairs


@inlined_kernel
def _start_batch(
    graph: Graph, requests: Passes, run: ReplayState, queue: int, replica: int, now_s: float
) -> None:
    """Start a batch of requests from ``queue`` on ``replica`` at ``now_s``."""
    station = graph.station_of[replica]
    if requests.by_key and _in_prompt(requests, run, run.queue_head[queue]):
        _sort_queue(run.next_in_list, run.queue_head, run.queue_tail, requests.key, station, queue)
    batch_head, decodes, kv_tokens, prompt_tokens, attention_pairs = _take_batch(
        graph, requests, run, queue, station
    )
    if run.waiting[queue] > 0:
        _note_queue(run, queue)
    curve = graph.curves[graph.curve_offset[station] : graph.curve_offset[station + 1]]
    seconds = iteration_seconds(curve, float(decodes), kv_tokens, prompt_tokens, attention_pairs)
    run.batch_head[replica] = batch_head
    run.work_left_s[replica], run.work_updated_s[replica] = seconds, now_s
    _change_load(graph, run, replica, 1.0, now_s)
    run.slowdown[replica] = _slowdown(graph, run, replica)
    _update_end(run, replica, now_s + seconds * run.slowdown[replica])


@inlined_kernel
def _start_free_replicas(graph: Graph, requests: Passes, run: ReplayState, now_s: float) -> None:
    """Start batches of waiting requests on free replicas."""
    while run.check_count[0] > 0:
        run.check_count[0] -= 1
        queue = run.queues_to_check[run.check_count[0]]
        if run.waiting[queue] == 0:
            continue
        station, replica = graph.station_of[queue], -1
        if graph.sticky[station]:
            replica = queue if run.batch_head[queue] < 0 else -1
        elif run.idle_count[station] > 0:
            run.idle_count[station] -= 1
            replica = run.idle_replicas[graph.first_replica[station] + run.idle_count[station]]
        if replica >= 0:
            _start_batch(graph, requests, run, queue, replica, now_s)


@inlined_kernel
def _stations_of_service(graph: Graph, service: int) -> tuple[int, int]:
    """Return the first station of ``service``, and the one after its last."""
    return graph.service_offset[service], graph.service_offset[service + 1]


@inlined_kernel
def _begin_pass(graph: Graph, requests: Passes, run: ReplayState, request: int) -> None:
    """Begin a pass of ``request``: enqueue it at the stations without predecessors."""
    first, end = _stations_of_service(graph, requests.service[request])
    kind = PROMPT if _in_prompt(requests, run, request) else DECODE
    run.stations_left[request] = 0
    for station in range(first, end):
        if graph.visited[station, kind]:
            run.stations_left[request] += 1
            run.predecessors_left[request, station] = graph.predecessor_count[station, kind]
            if graph.predecessor_count[station, kind] == 0:
                _enqueue(graph, run, station, request)


@inlined_kernel
def _reserved_kv_tokens(graph: Graph, requests: Passes, station: int, request: int) -> float:
    """Return the KV-cache tokens that ``request`` reserves on its replica of ``station``.

    The station is sticky: the request stays on that replica. A station that decodes do not visit
    reserves the prompt only, others the whole sequence.
    """
    if not graph.visited[station, DECODE]:
        return float(requests.isl[request])
    decode_passes = requests.passes[request] - requests.chunks[request]
    return float(requests.isl[request] + max(decode_passes, 1))


@inlined_kernel
def _assign_replicas(graph: Graph, requests: Passes, run: ReplayState, request: int) -> bool:
    """Give ``request`` a replica at every sticky station; return False if one is full.

    It is the replica with the fewest requests among those that are not full. If requests are
    ``aligned``, all stations use the replica with the number chosen at the first one.
    """
    first_station, end = _stations_of_service(graph, requests.service[request])
    number = -1  # of the replica within its station; -1: none chosen yet
    for station in range(first_station, end):
        if not graph.sticky[station]:
            continue
        first, after_last = graph.first_replica[station], graph.first_replica[station + 1]
        if requests.aligned and number >= 0:
            first, after_last = first + number, first + number + 1
        best, tokens = -1, _reserved_kv_tokens(graph, requests, station, request)
        for replica in range(first, after_last):
            has_place = run.admitted[replica] < graph.max_requests[station]
            fits = has_place and run.kv_tokens[replica] + tokens <= graph.kv_capacity[replica]
            if fits and (best < 0 or run.admitted[replica] < run.admitted[best]):
                best = replica
        if best < 0:
            return False
        number = best - graph.first_replica[station]
        run.own_number[station, request] = number
    for station in range(first_station, end):
        if graph.sticky[station]:
            replica = graph.first_replica[station] + run.own_number[station, request]
            run.admitted[replica] += 1
            run.kv_tokens[replica] += _reserved_kv_tokens(graph, requests, station, request)
    return True


@inlined_kernel
def _release_replicas(
    graph: Graph, requests: Passes, run: ReplayState, request: int, decodes: bool
) -> None:
    """Release the replicas of ``request`` at some of its sticky stations.

    If ``decodes``, at those that decoding visits, else at those that only prompts visit.
    """
    first_station, end = _stations_of_service(graph, requests.service[request])
    for station in range(first_station, end):
        if graph.sticky[station] and graph.visited[station, DECODE] == decodes:
            replica = graph.first_replica[station] + run.own_number[station, request]
            run.admitted[replica] -= 1
            run.kv_tokens[replica] -= _reserved_kv_tokens(graph, requests, station, request)


@inlined_kernel
def _deliver(graph: Graph, requests: Passes, run: ReplayState, station: int, first: int) -> None:
    """Enqueue the requests of a finished batch of ``station`` at the next stations.

    A request is enqueued at a station once all predecessors of that station are done. ``first`` is
    the first request of the batch.
    """
    request = first
    while request >= 0:
        following = run.next_in_list[station, request]
        kind = PROMPT if _in_prompt(requests, run, request) else DECODE
        for i in range(graph.next_offset[station], graph.next_offset[station + 1]):
            next_station = graph.next_stations[i]
            if graph.visited[next_station, kind]:
                run.predecessors_left[request, next_station] -= 1
                if run.predecessors_left[request, next_station] == 0:
                    _enqueue(graph, run, next_station, request)
        request = following


@inlined_kernel
def _start_transfer(run: ReplayState, station: int, batch_head: int, arrives_s: float) -> None:
    """Start the transfer of a finished batch of ``station``, which ends at time ``arrives_s``.

    ``batch_head`` is the first request of the batch.
    """
    run.count[FREE_SLOTS] -= 1
    slot = run.free_slots[run.count[FREE_SLOTS]]
    run.transfers[slot, STATION], run.transfers[slot, FIRST] = station, batch_head
    # Append to the heap, and move up while the parent is later.
    heap, position = run.transfer_heap, run.count[IN_TRANSIT]
    run.count[IN_TRANSIT] += 1
    while position > 0 and heap[(position - 1) // 2, ARRIVAL] > arrives_s:
        parent = (position - 1) // 2
        heap[position, ARRIVAL], heap[position, SLOT] = heap[parent, ARRIVAL], heap[parent, SLOT]
        position = parent
    heap[position, ARRIVAL], heap[position, SLOT] = arrives_s, slot


@inlined_kernel
def _finish_transfer(run: ReplayState) -> int:
    """Remove the transfer that arrives first, and return its slot in ``run.transfers``."""
    heap = run.transfer_heap
    slot = int(heap[0, SLOT])
    run.count[IN_TRANSIT] -= 1
    size = run.count[IN_TRANSIT]
    # The last entry takes the place of the first, and moves down while a child is earlier.
    arrives_s, last_slot, position = heap[size, ARRIVAL], heap[size, SLOT], 0
    while 2 * position + 1 < size:
        child = 2 * position + 1
        if child + 1 < size and heap[child + 1, ARRIVAL] < heap[child, ARRIVAL]:
            child += 1
        if heap[child, ARRIVAL] >= arrives_s:
            break
        heap[position, ARRIVAL], heap[position, SLOT] = heap[child, ARRIVAL], heap[child, SLOT]
        position = child
    heap[position, ARRIVAL], heap[position, SLOT] = arrives_s, last_slot
    run.free_slots[run.count[FREE_SLOTS]] = slot
    run.count[FREE_SLOTS] += 1
    return slot


@inlined_kernel
def _finish_pass(
    graph: Graph, requests: Passes, run: ReplayState, request: int, now_s: float
) -> None:
    """End a pass of ``request`` at ``now_s``: note its next pass, or its end.

    Its replicas are released after the last pass, and those of prompts after the last chunk.
    """
    run.passes_done[request] += 1
    if run.passes_done[request] == requests.passes[request]:
        run.finish[request] = now_s
        _release_replicas(graph, requests, run, request, True)
        return
    run.next_pass[run.count[NEXT_PASS]] = request
    run.count[NEXT_PASS] += 1
    if run.passes_done[request] == requests.chunks[request]:  # the last chunk of the prompt
        run.prefilled[request] = now_s
        _release_replicas(graph, requests, run, request, False)


@inlined_kernel
def _finish_batch(
    graph: Graph, requests: Passes, run: ReplayState, replica: int, now_s: float
) -> int:
    """End the batch of ``replica``, and start its transfer to the next stations.

    Returns the first request of the batch if it arrives at the next stations at once, else -1. Also
    ends the pass of requests that have visited every station.
    """
    station, batch_head = graph.station_of[replica], run.batch_head[replica]
    run.batch_head[replica] = -1
    _change_load(graph, run, replica, -1.0, now_s)
    _update_end(run, replica, NEVER)
    # The replica is free for the next batch of its queue.
    queue = replica
    if not graph.sticky[station]:
        queue = graph.first_replica[station]
        run.idle_replicas[queue + run.idle_count[station]] = replica
        run.idle_count[station] += 1
    if run.waiting[queue] > 0:
        _note_queue(run, queue)
    sent_rows, request = 0.0, batch_head  # rows: prompt tokens, or sequences
    while request >= 0:
        following = run.next_in_list[station, request]
        in_prompt = _in_prompt(requests, run, request)
        sent_rows += float(requests.isl[request]) / requests.chunks[request] if in_prompt else 1.0
        run.stations_left[request] -= 1
        if run.stations_left[request] == 0:
            _finish_pass(graph, requests, run, request, now_s)
        request = following
    if graph.next_offset[station] == graph.next_offset[station + 1]:
        return -1  # the last station
    # The batch crosses the link after earlier ones, then takes the latency of its hops.
    sent_s = now_s
    if graph.row_s[station] > 0:
        device = graph.shard_device[graph.shard_offset[replica]]
        sent_s = max(now_s, run.link_free_s[device]) + sent_rows * graph.row_s[station]
        run.link_free_s[device] = sent_s
    if sent_s + graph.hop_s[station] <= now_s:
        return int(batch_head)
    _start_transfer(run, station, batch_head, sent_s + graph.hop_s[station])
    return -1


@cached_kernel
def _replay_loop(graph: Graph, requests: Passes, run: ReplayState) -> None:
    """Process all events of a replay in order of time: ends of batches, transfers, arrivals."""
    count = requests.arrival_s.size
    arrived = 0  # number of requests
    while True:
        # At equal times, ends of batches come first, then transfers, then arrivals.
        request_s = requests.arrival_s[arrived] if arrived < count else NEVER
        batch_end_s = run.end_tree[1]
        transfer_s = run.transfer_heap[0, ARRIVAL] if run.count[IN_TRANSIT] > 0 else NEVER
        now_s = min(request_s, batch_end_s, transfer_s)
        if now_s == NEVER:
            break
        station, batch_head = 0, -1  # a batch that reaches the next stations now; -1: none
        if batch_end_s == now_s:
            replica = _earliest_end(run)
            station = graph.station_of[replica]
            batch_head = _finish_batch(graph, requests, run, replica, now_s)
        elif transfer_s == now_s:
            slot = _finish_transfer(run)
            station, batch_head = run.transfers[slot, STATION], run.transfers[slot, FIRST]
        else:
            arrived += 1
        if batch_head >= 0:
            _deliver(graph, requests, run, station, batch_head)
        # Requests with another pass come before new admissions.
        for i in range(run.count[NEXT_PASS]):
            _begin_pass(graph, requests, run, run.next_pass[i])
        for service in range(run.next_admitted.size):
            request = run.next_admitted[service]
            while 0 <= request < arrived and _assign_replicas(graph, requests, run, request):
                _begin_pass(graph, requests, run, request)
                request = requests.next_of_service[request]
                run.next_admitted[service] = request
        run.count[NEXT_PASS] = 0
        _start_free_replicas(graph, requests, run, now_s)


def replay(graph: Graph, requests: Passes) -> ReplayState:
    """Replay all requests and return the final state.

    ``finish`` and ``prefilled`` have the times at which requests, and the prompts of chunked
    requests, were done. NaN means that the request never fitted in memory.
    """
    run = initial_state(graph, requests)
    _replay_loop(graph, requests, run)
    return run
