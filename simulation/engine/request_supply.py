"""Supply of a stream's requests to the engine, and removal of finished ones.

A stream has more requests than fit in memory. It is loaded piece by piece. A request is identified
by its index, so every reference to one is renumbered after a removal. References are in batches,
queues, current iterations, deliveries, the router and the deferred queues. The order of requests
stays, and ties are broken by it. So a simulation continues as if none had left.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from simulation.arrays import Array, BoolArray
from simulation.deadlines import due_after_s
from simulation.engine import result_tables
from simulation.engine.allocation import check_count, request_records, services
from simulation.engine.heaps import REQUEST_BITS
from simulation.engine.request_records import Rules, columns_of, count_requests
from simulation.engine.state import State
from simulation.errors import InvariantViolated
from simulation.fleet import Fleet
from simulation.results import UNFINISHED
from simulation.stream.tally import Tally
from simulation.trace import PrefixBlocks, Trace, join_traces

_INSTANCE_FIELDS = ("partial_prompt", "ending_prompts", "ending_prompts_tail", "newest_request")
_REQUEST_FIELDS = ("next_in_queue", "next_admitted", "previous_admitted")


def replace_requests(
    state: State, keep: BoolArray, joining: Array, prefix_start: Array, prefix_ids: Array
) -> None:
    """Remove the requests of ``state`` where ``keep [request]`` is False, and append ``joining``.

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
    for waiting in (state.queues, state.router_queue, state.deferred_queues):
        waiting[...] = new_index[waiting]
    in_transit = state.delivery_request[: int(clock["deliveries"])]
    in_transit[:] = new_index[in_transit]
    _renumber_batches(state, new_index)
    requests = np.concatenate([state.requests[keep], joining])
    for name in _REQUEST_FIELDS:
        requests[name][:kept_count] = new_index[requests[name][:kept_count]]
    # The next arrival moves down by the number of removed requests before it.
    clock["next_arrival"] = int(keep[: int(clock["next_arrival"])].sum())
    state.refill(requests, prefix_start, prefix_ids)


def _renumber_batches(state: State, new_index: Array) -> None:
    """Replace the indices of the requests in batches: request i becomes ``new_index[i]``.

    Each entry of ``state.decode_heap`` has the number of a request's last iteration in its high
    bits, and the request's index in its low bits.
    """
    request_mask = (1 << REQUEST_BITS) - 1
    busy = np.flatnonzero(state.instances["decodes"])
    decodes = state.instances["decodes"][busy]
    # The entries of an instance are the first ones of its row, one for each decode.
    row = np.repeat(busy, decodes)
    column = np.arange(len(row)) - np.repeat(np.cumsum(decodes) - decodes, decodes)
    packed = state.decode_heap[row, column]
    finish_bits = packed & ~request_mask
    state.decode_heap[row, column] = finish_bits | new_index[packed & request_mask]


class RequestFeed(Protocol):
    """A source of requests that are not in the state yet."""

    next_s: float  # arrival of the next request; inf: all requests are loaded

    def refill(self, state: State) -> None:
        """Load more requests. Every event before ``next_s`` has been processed."""


class NothingMore:
    """An empty feed, for a state that has every request from the start."""

    next_s = np.inf

    def refill(self, state: State) -> None:
        """Do nothing: all requests are loaded already."""


class StreamFeed:
    """A feed that loads one piece of a stream after the other.

    ``loaded`` is the piece that the state has from the start. ``tally`` counts finished requests.
    ``last_due_s`` is the latest time at which a loaded request is due.
    """

    def __init__(self, loaded: Trace, pieces: Iterator[Trace], fleet: Fleet, tally: Tally) -> None:
        self._loaded, self._pieces, self._fleet, self._tally = loaded, pieces, fleet, tally
        self._services = services(fleet)
        self._has_prefix_cache = any(pool.prefix_cache for pool in fleet.pools)
        self.last_due_s = 0.0
        self._raise_last_due(loaded)
        self._read_next_piece()

    def refill(self, state: State) -> None:
        """Add finished requests to the tally and load the next piece in their place."""
        assert self._next is not None
        # Requests with another outcome are final, and no part of the engine refers to them.
        keep = state.requests["outcome"] == UNFINISHED
        self.count(state, until_s=np.inf)  # no request is unfinished for good yet
        self._loaded = join_traces([self._loaded.rows(keep), self._next], shared=True)
        self._raise_last_due(self._next)
        records, accepted, _ = request_records(self._next, self._fleet, self._services)
        state.clock["unfinished"] += accepted
        prefix_start, prefix_ids = state.prefix_start, state.prefix_ids
        if isinstance(self._loaded.blocks, PrefixBlocks) and self._has_prefix_cache:
            prefix_start = self._loaded.blocks.start.copy()
            prefix_ids = self._loaded.blocks.ids.copy()
        replace_requests(state, keep, records, prefix_start, prefix_ids)
        self._read_next_piece()

    def count(self, state: State, until_s: float, first: int = 0) -> None:
        """Add the loaded requests from index ``first`` on to the tally, see ``count_requests``.

        Raises InvariantViolated if the times of a request contradict its outcome (a bug).
        """
        rules = Rules.of(result_tables.seconds_away(state), self._loaded, self._fleet.tiers)
        columns = columns_of(self._loaded)
        if not count_requests(state.requests, columns, rules, self._tally, first, until_s):
            raise InvariantViolated("Broken law: the outcome and times of a request contradict.")

    def _read_next_piece(self) -> None:
        """Read the next piece of the stream, and note the time of its first arrival."""
        self._next = next(self._pieces, None)
        self.next_s = np.inf if self._next is None else float(self._next.arrival_s[0])

    def _raise_last_due(self, trace: Trace) -> None:
        """Raise ``last_due_s`` to the latest time at which a request of ``trace`` is due."""
        for code, after_s in enumerate(due_after_s(trace, self._fleet.tiers).tolist()):
            arrivals = trace.arrival_s[trace.tier == code]
            if np.isfinite(after_s) and len(arrivals):
                # Arrivals never decrease, so the last one is due last.
                self.last_due_s = max(self.last_due_s, float(arrivals[-1]) + after_s)
