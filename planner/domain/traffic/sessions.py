"""Draw and repeat sessions as a whole."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from simulation.arrays import CodeArray, FloatArray, Int32Array, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Requests grouped by session; a request without a session is a group of its own."""

    rows: IntArray  # [requests] indices of requests, group by group, in order of arrival
    first: IntArray  # [groups] index into ``rows`` of the group's first turn
    turns: IntArray  # [groups] number of requests (turns)

    @classmethod
    def of(cls, session: Int32Array | None, count: int) -> Self:
        """Group ``count`` requests by ``session`` ``[requests]``; -1 or None means no session."""
        own = np.arange(count)
        if session is None:
            return cls(own, own, np.ones(count, np.int64))
        # A request without a session gets a number above those of all sessions.
        group = np.where(session >= 0, session, int(session.max(initial=-1)) + 1 + own)
        rows = np.argsort(group, kind="stable")
        _, first, turns = np.unique(group[rows], return_index=True, return_counts=True)
        return cls(rows, first, turns)

    @property
    def begins(self) -> IntArray:
        """Return the index of the first request of each group, ``[groups]``."""
        return self.rows[self.first]

    def copies(
        self, arrived: FloatArray, picked: IntArray, begin: FloatArray
    ) -> tuple[FloatArray, IntArray, Int32Array]:
        """Return (arrivals, originals, session ids) of the requests in copies of some groups.

        Group number ``picked[i]`` is copied to begin at ``begin[i]``, with the same times between
        its turns. ``arrived`` has the arrivals of all requests. An original is the index of the
        copied request. Copies of a single request have the session id -1.
        """
        counts = self.turns[picked]
        # Index of each copied turn: the start of its session plus its place within the session.
        offset = self.first[picked] - (np.cumsum(counts) - counts)
        original = self.rows[np.repeat(offset, counts) + np.arange(counts.sum())]
        copy = np.repeat(np.arange(len(picked)), counts)
        arrival = begin[copy] + (arrived[original] - arrived[self.begins[picked]][copy])
        return arrival, original, np.where(counts[copy] > 1, copy, -1).astype(np.int32)


def with_first_turns_code(codes: CodeArray, session: Int32Array) -> CodeArray:
    """Return ``codes [requests]``, such as regions, with equal codes in all turns of a session.

    These are the code of the session's first turn.
    """
    turns = session >= 0
    # First turn of each session, and the number of the session of each turn.
    _, first, number = np.unique(session[turns], return_index=True, return_inverse=True)
    codes = codes.copy()
    codes[turns] = codes[turns][first][number]
    return codes
