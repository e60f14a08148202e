"""Removal of finished requests from the table of a state, and addition of new ones at its end.

A request is identified by its index, so every reference to one must be renumbered. References are
in batches, queues, current iterations, deliveries, the router and the deferred queues. The order of
requests stays, and ties are broken by it. So a simulation continues as if none had left.
"""

import numpy as np

from simulation.arrays import Array, BoolArray
from simulation.engine.allocation import check_count
from simulation.engine.heaps import REQUEST_BITS
from simulation.engine.state import State

_INSTANCE_FIELDS = ("partial", "fresh", "fresh_tail", "newest")
_REQUEST_FIELDS = ("next", "newer", "older")


def replace_requests(
    state: State, keep: BoolArray, joining: Array, prefix_start: Array, prefix_ids: Array
) -> None:
    """Keep the requests in the mask ``keep [requests]`` and append ``joining``.

    ``prefix_start`` and ``prefix_ids`` are the prompt blocks of the kept and the joining requests.
    No instance or queue may refer to a request that is removed.
    """
    kept_count = int(keep.sum())
    check_count(kept_count + len(joining))
    # The last entry maps -1 (no request) to itself.
    new_index = np.full(len(keep) + 1, -1, np.int64)
    new_index[:-1][keep] = np.arange(kept_count)
    clock = state.clock[0]
    for name in _INSTANCE_FIELDS:
        state.instances[name] = new_index[state.instances[name]]
    for waiting in (state.queues, state.router_queue, state.deferred):
        waiting[...] = new_index[waiting]
    on_wire = state.delivery_request[: int(clock["deliveries"])]
    on_wire[:] = new_index[on_wire]
    _renumber_batches(state, new_index)
    requests = np.concatenate([state.requests[keep], joining])
    for name in _REQUEST_FIELDS:
        requests[name][:kept_count] = new_index[requests[name][:kept_count]]
    # The next arrival moves down by the number of removed requests before it.
    clock["arrival"] = int(keep[: int(clock["arrival"])].sum())
    state.refill(requests, prefix_start, prefix_ids)


def _renumber_batches(state: State, new_index: Array) -> None:
    """Renumber the requests in batches.

    Each entry of ``state.batch`` has the number of a request's last iteration in its high bits, and
    the request's index in its low bits.
    """
    request_mask = (1 << REQUEST_BITS) - 1
    busy = np.flatnonzero(state.instances["decodes"])
    decodes = state.instances["decodes"][busy]
    row = np.repeat(busy, decodes)
    column = np.arange(len(row)) - np.repeat(np.cumsum(decodes) - decodes, decodes)
    packed = state.batch[row, column]
    finish = packed & ~request_mask
    state.batch[row, column] = finish | new_index[packed & request_mask]
