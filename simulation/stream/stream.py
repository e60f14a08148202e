"""A request log that is read in pieces, for ``simulate_stream``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import row_slices
from simulation.errors import SimulationError
from simulation.trace import CachedTokens, PrefixBlocks, Prefixes, Trace

PIECE = 1 << 18  # requests passed to the engine at a time, about 130 bytes each


@dataclass(frozen=True, slots=True)
class Stream:
    """Requests in order of arrival, in pieces that follow each other on one clock.

    Each piece is a trace with the names and the ``start_s`` of the stream.
    """

    chunks: Callable[[], Iterator[Trace]]  # returns all pieces, from the beginning at each call
    models: tuple[str, ...]
    regions: tuple[str, ...]
    tiers: tuple[str, ...]
    start_s: float  # UTC epoch seconds of arrival_s == 0
    requests: int  # upper bound
    most_tokens: int  # upper bound of input and output tokens of one request
    # Tokens of a prompt block; 0: cached tokens are counted; None: no prefix is known.
    block_tokens: int | None = None

    @classmethod
    def of(cls, trace: Trace, piece: int = PIECE, most_tokens: int | None = None) -> Stream:
        """Return a stream of the requests of a trace, in pieces of ``piece`` requests.

        Turns of sessions are sent at their times in the trace. ``most_tokens`` replaces the size of
        the largest request if a smaller bound is known for those that matter.
        """
        trace = replace(trace, session=None, think_s=None)
        starts = range(0, len(trace), piece)
        if most_tokens is None:
            # By blocks of rows, so that the sums need little memory.
            most_tokens = 2  # of the smallest request
            for rows in row_slices(len(trace)):
                tokens = trace.input_tokens[rows].astype(np.int64) + trace.output_tokens[rows]
                most_tokens = max(most_tokens, int(tokens.max()))
        return cls(
            lambda: (trace.rows(slice(i, i + piece)) for i in starts),
            trace.models,
            trace.regions,
            trace.tiers,
            trace.start_s,
            len(trace),
            most_tokens,
            _block_tokens(trace),
        )

    @property
    def empty_piece(self) -> Trace:
        """Return a piece without requests."""
        tokens, codes = np.zeros(0, np.int32), np.zeros(0, np.int16)
        blocks: Prefixes | None = None
        if self.block_tokens == 0:
            blocks = CachedTokens(tokens)
        elif self.block_tokens is not None:
            blocks = PrefixBlocks(np.zeros(1, np.int64), tokens, self.block_tokens)
        return Trace(
            arrival_s=np.zeros(0),
            input_tokens=tokens,
            output_tokens=tokens,
            model=codes,
            region=codes,
            tier=codes,
            models=self.models,
            regions=self.regions,
            tiers=self.tiers,
            start_s=self.start_s,
            blocks=blocks,
        )

    def pieces(self, end_s: float, piece: int = PIECE) -> Iterator[Trace]:
        """Yield the requests before ``end_s``, from chunks of any size, in pieces.

        A piece has 1 to ``piece`` requests. Raises ``SimulationError`` for a chunk of other models,
        regions, tiers, start or block size than the stream, and for arrivals before those of the
        chunk before.
        """
        last_s = 0.0
        for chunk in self.chunks():
            if not len(chunk):
                continue
            self._check(chunk, last_s)
            last_s = chunk.duration_s
            stop = int(np.searchsorted(chunk.arrival_s, end_s))
            for i in range(0, stop, piece):
                yield chunk.rows(slice(i, min(i + piece, stop)))
            if stop < len(chunk):  # later chunks arrive after ``end_s``
                return

    def _check(self, chunk: Trace, last_s: float) -> None:
        """Raise ``SimulationError`` for the chunks that ``pieces`` refuses.

        ``last_s`` is the last arrival of the chunk before.
        """
        names = (chunk.models, chunk.regions, chunk.tiers, chunk.start_s)
        if names != (self.models, self.regions, self.tiers, self.start_s):
            raise SimulationError("A piece of a stream must have the stream's names and start.")
        if _block_tokens(chunk) != self.block_tokens:
            raise SimulationError("A piece of a stream must have blocks of the stream's size.")
        if chunk.arrival_s[0] < last_s:
            raise SimulationError("Trace arrivals must not decrease. Sort the requests first.")
        if min(chunk.input_tokens.min(), chunk.output_tokens.min()) < 1:
            raise SimulationError("Every request needs at least one input and one output token.")


def _block_tokens(trace: Trace) -> int | None:
    """Return the tokens of a prompt block, or 0 if the trace only counts cached tokens.

    None if the trace has neither.
    """
    if isinstance(trace.blocks, PrefixBlocks):
        return trace.blocks.block_tokens
    return None if trace.blocks is None else 0
