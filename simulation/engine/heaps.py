"""The three heaps of the engine, on flat arrays; the lower number always wins a tie.

- per instance: decoding requests by (finish number, request), packed into one number;
- instances by (next event, slot), with the position of every instance, so that it can be moved;
- requests in transit by (delivery time, request).

A sift only compares adjacent heap entries. It never reads the records of requests or instances,
which are too many for the processor's caches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiled import kernel

REQUEST_BITS = 28  # the 35 bits above count iterations of an instance: decades of real operation


# --- decoding requests of one instance -----------------------------------------------------------


@kernel
def batch_push(s: Any, slot: int, finish: int, r: int) -> None:
    """Add request ``r``, which decodes until iteration ``finish`` of its instance ends."""
    instance = s.instances[slot]
    _batch_up(s, slot, instance.decodes, (finish << REQUEST_BITS) | r)
    instance.decodes += 1


@kernel
def batch_first(s: Any, slot: int) -> int:
    """Return the iteration that ends the first request."""
    return int(s.batch[slot, 0] >> REQUEST_BITS)


@kernel
def batch_pop(s: Any, slot: int) -> int:
    """Remove the request that ends first, and return it."""
    r = s.batch[slot, 0] & ((1 << REQUEST_BITS) - 1)
    _batch_remove(s, slot, 0)
    return int(r)


@kernel
def batch_at(s: Any, slot: int, i: int) -> tuple[int, int]:
    """Return ``(finish, request)`` at index ``i`` of the heap, which is in heap order."""
    return s.batch[slot, i] >> REQUEST_BITS, s.batch[slot, i] & ((1 << REQUEST_BITS) - 1)


@kernel
def batch_finish(s: Any, slot: int, r: int) -> int:
    """Return the iteration that will end request ``r``."""
    return int(s.batch[slot, _batch_place(s, slot, r)] >> REQUEST_BITS)


@kernel
def batch_remove(s: Any, slot: int, r: int) -> None:
    """Remove request ``r`` from the decoding requests."""
    _batch_remove(s, slot, _batch_place(s, slot, r))


@kernel
def _batch_up(s: Any, slot: int, i: int, key: int) -> None:
    """Move ``key`` up from index ``i`` to its position."""
    while i > 0:
        parent = (i - 1) >> 1
        other = s.batch[slot, parent]
        if other < key:
            break
        s.batch[slot, i] = other
        i = parent
    s.batch[slot, i] = key


@kernel
def _batch_place(s: Any, slot: int, r: int) -> int:
    """Return the index of request ``r`` in the heap; -1: not there."""
    # Search linearly: only preemption needs this, and stored indices would slow every sift.
    for i in range(s.instances[slot].decodes):
        if s.batch[slot, i] & ((1 << REQUEST_BITS) - 1) == r:
            return i
    return -1


@kernel
def _batch_remove(s: Any, slot: int, i: int) -> None:
    """Remove index ``i``: the last entry takes its place and moves down, then up."""
    instance = s.instances[slot]
    instance.decodes -= 1
    size = instance.decodes
    if i == size:
        return
    key = s.batch[slot, size]
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and s.batch[slot, child + 1] < s.batch[slot, child]:
            child += 1
        if key < s.batch[slot, child]:
            break
        s.batch[slot, i] = s.batch[slot, child]
        i = child
    _batch_up(s, slot, i, key)


# --- instances by next event ---------------------------------------------------------------------


@kernel
def _before(s: Any, time: float, slot: int, i: int) -> bool:
    """Return whether (time, slot) comes before entry ``i``."""
    other = s.event_time[i]
    return bool(time < other or (time == other and slot < s.event_slot[i]))


@kernel
def _place(s: Any, i: int, time: float, slot: int) -> None:
    """Store an entry at index ``i`` and its index with the slot."""
    s.event_time[i] = time
    s.event_slot[i] = slot
    s.event_place[slot] = i


@kernel
def _event_up(s: Any, i: int, time: float, slot: int) -> None:
    """Move an entry up from index ``i`` to its position."""
    while i > 0:
        parent = (i - 1) >> 1
        if not _before(s, time, slot, parent):
            break
        _place(s, i, s.event_time[parent], s.event_slot[parent])
        i = parent
    _place(s, i, time, slot)


@kernel
def _event_move(s: Any, i: int, time: float, slot: int) -> None:
    """Move an instance to its position, from the free index ``i``."""
    size = s.clock[0].instances
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _before(s, s.event_time[child + 1], s.event_slot[child + 1], child):
            child += 1
        if _before(s, time, slot, child):
            break
        _place(s, i, s.event_time[child], s.event_slot[child])
        i = child
    _event_up(s, i, time, slot)


@kernel
def schedule(s: Any, slot: int, when: float) -> None:
    """Set the next event of an instance; inf takes it out of the heap."""
    clock = s.clock[0]
    i = s.event_place[slot]
    if when == np.inf:
        if i < 0:
            return
        s.event_place[slot] = -1
        clock.instances -= 1
        last = clock.instances
        if i < last:
            _event_move(s, i, s.event_time[last], s.event_slot[last])
    elif i < 0:
        clock.instances += 1
        _event_up(s, clock.instances - 1, when, slot)
    else:
        _event_move(s, i, when, slot)


# --- requests in transit -------------------------------------------------------------------------


@kernel
def delivery_push(s: Any, time: float, r: int) -> None:
    """Add the delivery at ``time`` of request ``r`` to the region that it was sent to."""
    i = s.clock[0].deliveries
    s.clock[0].deliveries += 1
    while i > 0:
        parent = (i - 1) >> 1
        other, other_r = s.delivery_time[parent], s.delivery_request[parent]
        if other < time or (other == time and other_r < r):
            break
        s.delivery_time[i], s.delivery_request[i] = other, other_r
        i = parent
    s.delivery_time[i], s.delivery_request[i] = time, r


@kernel
def delivery_pop(s: Any) -> int:
    """Remove the next delivery and return its request."""
    top = s.delivery_request[0]
    s.clock[0].deliveries -= 1
    size = s.clock[0].deliveries
    time, r = s.delivery_time[size], s.delivery_request[size]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size:
            a, b = s.delivery_time[child], s.delivery_time[child + 1]
            if b < a or (b == a and s.delivery_request[child + 1] < s.delivery_request[child]):
                child += 1
        key, key_r = s.delivery_time[child], s.delivery_request[child]
        if time < key or (time == key and r < key_r):
            break
        s.delivery_time[i], s.delivery_request[i] = key, key_r
        i = child
    s.delivery_time[i], s.delivery_request[i] = time, r
    return int(top)
