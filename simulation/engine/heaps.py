"""The three heaps of the engine, each on flat arrays, ties always broken by the lower number.

- per instance: decoding requests by (finish number, request);
- instances by (next event, slot), with every instance's place so that it can be moved;
- requests on the wire by (time of delivery, request).

The first two are called from many places and do much, so they are compiled once, not inlined, and
handed only the arrays of the state that they need.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simulation.compiled import kernel, outlined


class Batches(NamedTuple):
    """What the heaps of decoding requests need of the state."""

    requests: Any
    instances: Any
    batch_finish: Any
    batch_request: Any


class Events(NamedTuple):
    """What the heap of instances needs of the state."""

    clock: Any
    instances: Any
    event_slot: Any


# --- decoding requests of one instance -----------------------------------------------------------


@kernel
def _batch_put(s: Any, slot: int, i: int, finish: int, r: int) -> None:
    s.batch_finish[slot, i] = finish
    s.batch_request[slot, i] = r
    s.requests[r].at = i


@kernel
def _batch_up(s: Any, slot: int, i: int, finish: int, r: int) -> None:
    while i > 0:
        parent = (i - 1) >> 1
        other, other_r = s.batch_finish[slot, parent], s.batch_request[slot, parent]
        if other < finish or (other == finish and other_r < r):
            break
        _batch_put(s, slot, i, other, other_r)
        i = parent
    _batch_put(s, slot, i, finish, r)


@kernel
def _batch_down(s: Any, slot: int, size: int, i: int, finish: int, r: int) -> None:
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        key, key_r = s.batch_finish[slot, child], s.batch_request[slot, child]
        if child + 1 < size:
            right, right_r = s.batch_finish[slot, child + 1], s.batch_request[slot, child + 1]
            if right < key or (right == key and right_r < key_r):
                child, key, key_r = child + 1, right, right_r
        if finish < key or (finish == key and r < key_r):
            break
        _batch_put(s, slot, i, key, key_r)
        i = child
    _batch_put(s, slot, i, finish, r)


@kernel
def batch_push(s: Any, slot: int, finish: int, r: int) -> None:
    """Request ``r`` starts decoding and ends with iteration ``finish`` of its instance."""
    _batch_push(_batches(s), slot, finish, r)


@kernel
def batch_remove(s: Any, slot: int, r: int) -> None:
    """Request ``r`` decodes no more."""
    _batch_remove(_batches(s), slot, r)


@kernel
def _batches(s: Any) -> Any:
    return Batches(s.requests, s.instances, s.batch_finish, s.batch_request)


@outlined
def _batch_push(s: Any, slot: int, finish: int, r: int) -> None:
    instance = s.instances[slot]
    _batch_up(s, slot, instance.decodes, finish, r)
    s.requests[r].finish = finish
    instance.decodes += 1


@outlined
def _batch_remove(s: Any, slot: int, r: int) -> None:
    instance = s.instances[slot]
    instance.decodes -= 1
    last, i = instance.decodes, s.requests[r].at
    if i == last:
        return
    finish, moved = s.batch_finish[slot, last], s.batch_request[slot, last]
    _batch_down(s, slot, last, i, finish, moved)
    if s.requests[moved].at == i:
        _batch_up(s, slot, i, finish, moved)


# --- instances by next event ---------------------------------------------------------------------


@kernel
def _before(s: Any, a: int, b: int) -> bool:
    at, bt = s.instances[a].when, s.instances[b].when
    return bool(at < bt or (at == bt and a < b))


@kernel
def _place(s: Any, i: int, slot: int) -> None:
    s.event_slot[i] = slot
    s.instances[slot].place = i


@kernel
def _event_up(s: Any, i: int, slot: int) -> None:
    while i > 0:
        parent = (i - 1) >> 1
        if not _before(s, slot, s.event_slot[parent]):
            break
        _place(s, i, s.event_slot[parent])
        i = parent
    _place(s, i, slot)


@kernel
def _event_down(s: Any, i: int, slot: int) -> None:
    size = s.clock[0].instances
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and _before(s, s.event_slot[child + 1], s.event_slot[child]):
            child += 1
        if not _before(s, s.event_slot[child], slot):
            break
        _place(s, i, s.event_slot[child])
        i = child
    _place(s, i, slot)


@kernel
def schedule(s: Any, slot: int, when: float) -> None:
    """Set the next event of an instance; inf takes it out of the heap."""
    _schedule(Events(s.clock, s.instances, s.event_slot), slot, when)


@outlined
def _schedule(s: Any, slot: int, when: float) -> None:
    instance, clock = s.instances[slot], s.clock[0]
    i = instance.place
    instance.when = when
    if when == np.inf:
        if i < 0:
            return
        instance.place = -1
        clock.instances -= 1
        last = s.event_slot[clock.instances]
        if last == slot:
            return
        _event_down(s, i, last)
        if s.instances[last].place == i:
            _event_up(s, i, last)
    elif i < 0:
        clock.instances += 1
        _event_up(s, clock.instances - 1, slot)
    else:
        _event_down(s, i, slot)
        if instance.place == i:
            _event_up(s, i, slot)


# --- requests on the wire ------------------------------------------------------------------------


@kernel
def delivery_push(s: Any, time: float, r: int) -> None:
    """Request ``r`` reaches the region it was sent to at ``time``."""
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
    """The request delivered next."""
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
