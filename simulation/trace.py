"""A request log in columns, passed from ingest or synthesis to the simulator."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.arrays import BoolArray, CodeArray, FloatArray, Int32Array, IntArray
from simulation.errors import SimulationError

COLUMN_TYPES: dict[str, npt.DTypeLike] = {
    "arrival_s": np.float64,
    "input_tokens": np.int32,
    "output_tokens": np.int32,
    "model": np.int16,
    "region": np.int16,
    "tier": np.int16,
    "session": np.int32,
    "think_s": np.float64,
}


def _freeze(record: object, name: str, dtype: npt.DTypeLike) -> None:
    """Replace the field ``name`` of a frozen dataclass by a read-only view of type ``dtype``.

    The caller's own array stays writable.
    """
    column = np.ascontiguousarray(getattr(record, name), dtype=dtype).view()
    column.setflags(write=False)
    object.__setattr__(record, name, column)


@dataclass(frozen=True, slots=True, eq=False)
class PrefixBlocks:
    """Ids of the prefix-cache blocks of every prompt, as ``hash_ids`` of Mooncake's traces.

    An id stands for a block of tokens and all blocks before it. So two prompts share a prefix as
    long as their ids are equal.
    """

    start: IntArray  # [requests + 1]: start of each request's ids
    ids: Int32Array  # ids of all requests in order, at least 0
    block_tokens: int = 512

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise SimulationError("Blocks of prompts need at least one token each.")
        _freeze(self, "start", np.int64)
        _freeze(self, "ids", np.int32)
        starts = self.start
        if not len(starts) or starts[0] != 0 or starts[-1] != len(self.ids):
            raise SimulationError("Blocks of prompts need a start per request and one at the end.")
        if np.any(np.diff(starts) < 0) or (len(self.ids) and self.ids.min() < 0):
            raise SimulationError("Blocks of prompts need rising starts, and ids of at least 0.")

    def __len__(self) -> int:
        return len(self.start) - 1

    def rows(self, keep: slice | npt.NDArray[Any]) -> PrefixBlocks:
        """Return the blocks of the requests that ``keep`` (a slice, mask or index) selects."""
        chosen = np.arange(len(self))[keep]
        lengths = np.diff(self.start)[chosen]
        start = np.concatenate([[0], np.cumsum(lengths)])
        # Index of each kept id: the old start of its request plus its position in the request
        rows = np.repeat(self.start[chosen] - start[:-1], lengths) + np.arange(start[-1])
        return PrefixBlocks(start, self.ids[rows], self.block_tokens)


@dataclass(frozen=True, slots=True, eq=False)
class CachedTokens:
    """The tokens of every prompt that a prefix cache already has, as counted in a log.

    They need no prefill. Unlike blocks, they do not show which prompts share them.
    """

    tokens: Int32Array  # [requests], at least 0

    def __post_init__(self) -> None:
        _freeze(self, "tokens", np.int32)
        if len(self.tokens) and self.tokens.min() < 0:
            raise SimulationError("Cached tokens of prompts must be at least 0.")

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, keep: slice | npt.NDArray[Any]) -> CachedTokens:
        """Return the tokens of the requests that ``keep`` (a slice, mask or index) selects."""
        return CachedTokens(self.tokens[keep])


Prefixes = PrefixBlocks | CachedTokens  # data on the prefixes of each prompt


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival; every column has shape ``[requests]``.

    ``model``, ``region`` (home region, in which the request enters) and ``tier`` are indices of
    ``models``, ``regions`` and ``tiers``.
    """

    arrival_s: FloatArray  # seconds after start_s, not decreasing
    input_tokens: Int32Array  # ISL, at least 1
    output_tokens: Int32Array  # OSL, at least 1: the prefill produces the first
    model: CodeArray
    region: CodeArray
    tier: CodeArray
    models: tuple[str, ...]
    regions: tuple[str, ...]
    tiers: tuple[str, ...]
    start_s: float  # UTC epoch seconds of arrival_s == 0
    provenance: str = "measured"  # or "synthesised from ..."
    blocks: Prefixes | None = None  # of the prompts; None: unknown, no prefix is shared
    # Session of each request; -1: none. The requests of a session are its turns: each is sent when
    # the one before has its answer, and not before its arrival. None: no request has a session.
    session: Int32Array | None = None
    # Seconds from the answer of the turn before to this turn: think time of a user or tool
    think_s: FloatArray | None = None

    def __post_init__(self) -> None:
        for name, dtype in COLUMN_TYPES.items():
            if getattr(self, name) is not None:
                _freeze(self, name, dtype)
                if getattr(self, name).shape != (len(self),):
                    raise SimulationError(f"Trace column {name} must have one value per request.")
        if self.think_s is not None and not np.all(self.think_s >= 0):
            raise SimulationError("Trace column think_s must be at least 0 for every request.")
        if self.blocks is not None and len(self.blocks) != len(self):
            raise SimulationError("A trace's blocks must have one list per request.")
        if np.any(self.arrival_s[1:] < self.arrival_s[:-1]):
            raise SimulationError("Trace arrivals must not decrease. Sort the requests first.")
        for name, names in (("model", self.models), ("region", self.regions), ("tier", self.tiers)):
            codes = getattr(self, name)
            if len(codes) and (codes.min() < 0 or codes.max() >= len(names)):
                raise SimulationError(f"Trace column {name} holds a code without a name.")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        return float(self.arrival_s[-1]) if len(self) else 0.0

    def rows(self, keep: slice | BoolArray) -> Trace:
        """Return the requests that ``keep`` selects, in the same order and on the same clock."""
        session = None if self.session is None else self.session[keep]
        return self.select_with_arrivals(keep, self.arrival_s[keep], session)

    def select_with_arrivals(
        self, keep: slice | npt.NDArray[Any], arrival_s: FloatArray, session: Int32Array | None
    ) -> Trace:
        """Return the requests that ``keep`` selects, with new arrival times and sessions.

        ``arrival_s`` must not decrease.
        """
        return replace(
            self,
            arrival_s=arrival_s,
            input_tokens=self.input_tokens[keep],
            output_tokens=self.output_tokens[keep],
            model=self.model[keep],
            region=self.region[keep],
            tier=self.tier[keep],
            blocks=None if self.blocks is None else self.blocks.rows(keep),
            session=session,
            think_s=None if self.think_s is None else self.think_s[keep],
        )

    def window(self, start_s: float, end_s: float) -> Trace:
        """Return the requests in ``[start_s, end_s)`` (epoch); arrivals count from ``start_s``."""
        inside = self.rows(self.between(start_s, end_s))
        shifted = inside.arrival_s - (start_s - self.start_s)
        return replace(inside, arrival_s=shifted, start_s=start_s)

    def between(self, start_s: float, end_s: float) -> slice:
        """Return the slice of requests arriving in ``[start_s, end_s)`` (epoch seconds)."""
        bounds_s = [start_s - self.start_s, end_s - self.start_s]
        first, end = np.searchsorted(self.arrival_s, bounds_s).tolist()
        return slice(first, max(first, end))

    def before(self, end_s: float) -> int:
        """Return how many requests arrive before ``end_s`` (epoch seconds)."""
        return bisect_left(self.arrival_s, end_s, key=lambda arrival: arrival + self.start_s)


def previous_turns(session: Int32Array) -> Int32Array:
    """Return the index of the previous request of the same session, ``[requests]``; -1: none."""
    previous = np.full(len(session), -1, np.int32)
    order = np.argsort(session, kind="stable")  # sessions one after the other, turns in order
    by_session = session[order]
    follows_same = (by_session[1:] == by_session[:-1]) & (by_session[1:] >= 0)
    previous[order[1:][follows_same]] = order[:-1][follows_same]
    return previous


def joined_sessions(parts: Sequence[Trace]) -> Int32Array | None:
    """Return the column ``session`` of several traces as one; None if no trace has sessions.

    Sessions are renumbered, so that no two traces share one.
    """
    if all(part.session is None for part in parts):
        return None
    columns, next_session = [], 0
    for part in parts:
        session = np.full(len(part), -1, np.int32) if part.session is None else part.session
        columns.append(np.where(session < 0, -1, session + next_session))
        next_session = max(next_session, int(columns[-1].max(initial=-1)) + 1)
    return np.concatenate(columns).astype(np.int32)


def join_traces(parts: Sequence[Trace], *, shared: bool = False) -> Trace:
    """Return the requests of several traces, one after the other, on the clock of the first.

    The traces have the same names. With ``shared``, equal ids of blocks are the same block.
    """
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("arrival_s", "input_tokens", "output_tokens", "model", "region", "tier")
    }
    think_s = None
    if any(part.think_s is not None for part in parts):
        think_times = [
            np.zeros(len(part)) if part.think_s is None else part.think_s for part in parts
        ]
        think_s = np.concatenate(think_times)
    return replace(
        parts[0],
        **columns,  # type: ignore[arg-type]
        blocks=joined_prefixes(parts, shared=shared),
        session=joined_sessions(parts),
        think_s=think_s,
    )


def joined_prefixes(parts: Sequence[Trace], *, shared: bool = False) -> Prefixes | None:
    """Return the prompt blocks of several traces as one, or their cached tokens.

    Ids are renumbered so that no two traces share a block, except if ``shared``. If some traces
    have blocks, the cached tokens of the others are dropped. None if no trace has either, or if
    block sizes differ.
    """
    block_sizes = {
        part.blocks.block_tokens for part in parts if isinstance(part.blocks, PrefixBlocks)
    }
    if not block_sizes:
        return joined_cached(parts)
    if len(block_sizes) > 1:
        return None
    counts, ids, next_id = [], [], 0  # ``next_id``: the first id that no trace so far has
    for part in parts:
        if not isinstance(part.blocks, PrefixBlocks):
            counts.append(np.zeros(len(part), np.int64))
            continue
        counts.append(np.diff(part.blocks.start))
        ids.append(part.blocks.ids + next_id)
        next_id = 0 if shared else int(ids[-1].max(initial=next_id - 1)) + 1
    start = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    return PrefixBlocks(start, np.concatenate(ids), block_sizes.pop())


def joined_cached(parts: Sequence[Trace]) -> CachedTokens | None:
    """Return the cached tokens of several traces as one; None if no trace has any.

    A trace without cached tokens gets 0.
    """
    if not any(isinstance(part.blocks, CachedTokens) for part in parts):
        return None
    tokens = (getattr(part.blocks, "tokens", np.zeros(len(part), np.int32)) for part in parts)
    return CachedTokens(np.concatenate(list(tokens)))
