"""The three heaps of the engine, on flat arrays; the lower number always wins a tie.

- per instance: decoding requests by (number of the iteration that completes them, request), packed
  into one number;
- instances by (next event, slot), with the position of every instance, so that it can be moved;
- requests in transit by (delivery time, request).

Moving an entry only compares adjacent heap entries. It never reads the records of requests or
instances, which are too many for the processor's caches.
"""

from typing import Any

import numpy as np

from simulation.compiler import kernel

REQUEST_BITS = 28  # the 35 bits above count iterations of an instance: decades of real operation


# --- decoding requests of one instance -----------------------------------------------------------


@kernel
def batch_push(state: Any, slot: int, finish: int, r: int) -> None:
    """Add request ``r`` to an instance's decodes; iteration number ``finish`` completes it."""
    instance = state.instances[slot]
    key = (finish << REQUEST_BITS) | r  # sorts by ``finish``, then by request
    _batch_up(state, slot, instance.decodes, key)
    instance.decodes += 1


@kernel
def batch_first(state: Any, slot: int) -> int:
    """Return the number of the instance's iteration that completes the next request."""
    return int(state.decode_heap[slot, 0] >> REQUEST_BITS)


@kernel
def batch_pop(state: Any, slot: int) -> int:
    """Remove the decoding request of an instance that ends first, and return it."""
    r = state.decode_heap[slot, 0] & ((1 << REQUEST_BITS) - 1)
    _batch_remove(state, slot, 0)
    return int(r)


@kernel
def batch_at(state: Any, slot: int, i: int) -> tuple[int, int]:
    """Return entry ``i`` of an instance's heap of decodes: (finishing iteration, request).

    Entries are in heap order, which is not sorted.
    """
    key = state.decode_heap[slot, i]
    return key >> REQUEST_BITS, key & ((1 << REQUEST_BITS) - 1)


@kernel
def batch_finish(state: Any, slot: int, r: int) -> int:
    """Return the number of the iteration that completes ``r``, which must decode on ``slot``."""
    return int(state.decode_heap[slot, _batch_place(state, slot, r)] >> REQUEST_BITS)


@kernel
def batch_remove(state: Any, slot: int, r: int) -> None:
    """Remove request ``r`` from the decoding requests of an instance."""
    _batch_remove(state, slot, _batch_place(state, slot, r))


@kernel
def _batch_up(state: Any, slot: int, i: int, key: int) -> None:
    """Move ``key`` up from index ``i`` of an instance's heap of decodes to its position."""
    while i > 0:
        parent = (i - 1) >> 1
        other = state.decode_heap[slot, parent]
        if other < key:
            break
        state.decode_heap[slot, i] = other
        i = parent
    state.decode_heap[slot, i] = key


@kernel
def _batch_place(state: Any, slot: int, r: int) -> int:
    """Return the index of request ``r`` in its instance's heap of decodes; -1: not there."""
    # Search linearly: only preemption needs this, and stored indices would slow every sift.
    for i in range(state.instances[slot].decodes):
        if state.decode_heap[slot, i] & ((1 << REQUEST_BITS) - 1) == r:
            return i
    return -1


@kernel
def _batch_remove(state: Any, slot: int, i: int) -> None:
    """Remove the entry at index ``i`` of an instance's heap of decodes.

    The last entry replaces it and moves to its position.
    """
    instance = state.instances[slot]
    instance.decodes -= 1
    size = instance.decodes
    if i == size:
        return
    key = state.decode_heap[slot, size]
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and state.decode_heap[slot, child + 1] < state.decode_heap[slot, child]:
            child += 1
        if key < state.decode_heap[slot, child]:
            break
        state.decode_heap[slot, i] = state.decode_heap[slot, child]
        i = child
    _batch_up(state, slot, i, key)


# --- instances by next event ---------------------------------------------------------------------


@kernel
def _before(state: Any, time: float, slot: int, i: int) -> bool:
    """Return whether the event (time, slot) comes before entry ``i`` of the heap of instances."""
    other = state.event_time[i]
    return bool(time < other or (time == other and slot < state.event_slot[i]))


@kernel
def _place(state: Any, i: int, time: float, slot: int) -> None:
    """Write an event to index ``i`` of the heap of instances, and store the index by slot."""
    state.event_time[i] = time
    state.event_slot[i] = slot
    state.event_index[slot] = i


@kernel
def _event_up(state: Any, i: int, time: float, slot: int) -> None:
    """Move an event from index ``i`` toward the root of the heap, and write it to its position."""
    while i > 0:
        parent = (i - 1) >> 1
        if not _before(state, time, slot, parent):
            break
        _place(state, i, state.event_time[parent], state.event_slot[parent])
        i = parent
    _place(state, i, time, slot)


@kernel
def _event_move(state: Any, i: int, time: float, slot: int) -> None:
    """Write an event to its position, starting from the free index ``i`` of the heap."""
    size = state.clock[0].scheduled_instances
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _before(
            state, state.event_time[child + 1], state.event_slot[child + 1], child
        ):
            child += 1
        if _before(state, time, slot, child):
            break
        _place(state, i, state.event_time[child], state.event_slot[child])
        i = child
    _event_up(state, i, time, slot)


@kernel
def schedule(state: Any, slot: int, when: float) -> None:
    """Set the time of the next event of an instance; inf removes it from the heap."""
    clock = state.clock[0]
    i = state.event_index[slot]
    if when == np.inf:
        if i < 0:
            return
        state.event_index[slot] = -1
        clock.scheduled_instances -= 1
        last = clock.scheduled_instances
        if i < last:
            _event_move(state, i, state.event_time[last], state.event_slot[last])
    elif i < 0:
        clock.scheduled_instances += 1
        _event_up(state, clock.scheduled_instances - 1, when, slot)
    else:
        _event_move(state, i, when, slot)


# --- requests in transit -------------------------------------------------------------------------


@kernel
def delivery_push(state: Any, time: float, r: int) -> None:
    """Push request ``r`` onto the delivery heap; it reaches its region at ``time``."""
    i = state.clock[0].deliveries
    state.clock[0].deliveries += 1
    while i > 0:
        parent = (i - 1) >> 1
        other, other_r = state.delivery_time[parent], state.delivery_request[parent]
        if other < time or (other == time and other_r < r):
            break
        state.delivery_time[i], state.delivery_request[i] = other, other_r
        i = parent
    state.delivery_time[i], state.delivery_request[i] = time, r


@kernel
def delivery_pop(state: Any) -> int:
    """Remove the earliest delivery from the heap and return its request; the lower request first.

    The last entry replaces it and moves down to its position.
    """
    top = state.delivery_request[0]
    state.clock[0].deliveries -= 1
    size = state.clock[0].deliveries
    time, r = state.delivery_time[size], state.delivery_request[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size:
            left, right = state.delivery_time[child], state.delivery_time[child + 1]
            if right < left or (
                right == left and state.delivery_request[child + 1] < state.delivery_request[child]
            ):
                child += 1
        key, key_r = state.delivery_time[child], state.delivery_request[child]
        if time < key or (time == key and r < key_r):
            break
        state.delivery_time[i], state.delivery_request[i] = key, key_r
        i = child
    state.delivery_time[i], state.delivery_request[i] = time, r
    return int(top)
