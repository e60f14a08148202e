"""Draw and repeat sessions as a whole."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from simulation.arrays import CodeArray, FloatArray, Int32Array, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Requests grouped by session, in order of arrival; one without a session is its own group."""

    rows: IntArray  # [requests] group by group
    first: IntArray  # [groups] place in ``rows`` of the first turn
    turns: IntArray  # [groups]

    @classmethod
    def of(cls, session: Int32Array | None, count: int) -> Self:
        """Group ``count`` requests by their session, ``[requests]``; -1 or None: no session."""
        own = np.arange(count)
        if session is None:
            return cls(own, own, np.ones(count, np.int64))
        free = int(session.max(initial=-1)) + 1
        group = np.where(session >= 0, session, free + own)
        rows = np.argsort(group, kind="stable")
        _, first, turns = np.unique(group[rows], return_index=True, return_counts=True)
        return cls(rows, first, turns)

    @property
    def begins(self) -> IntArray:
        """Return the first request of each group."""
        return self.rows[self.first]

    def copies(
        self, arrived: FloatArray, picked: IntArray, begin: FloatArray
    ) -> tuple[FloatArray, IntArray, Int32Array]:
        """Return arrivals, original requests and new session ids of copies of ``picked`` groups.

        Each copy starts at ``begin`` and keeps the times between its turns.
        """
        counts = self.turns[picked]
        # Index of each copied turn: the start of its session plus its place within the session.
        offset = self.first[picked] - (np.cumsum(counts) - counts)
        original = self.rows[np.repeat(offset, counts) + np.arange(counts.sum())]
        copy = np.repeat(np.arange(len(picked)), counts)
        arrival = begin[copy] + (arrived[original] - arrived[self.begins[picked]][copy])
        return arrival, original, np.where(counts[copy] > 1, copy, -1).astype(np.int32)


def of_first_turn(codes: CodeArray, session: Int32Array) -> CodeArray:
    """Return codes in which all turns of a session have the code of its first turn."""
    turns = session >= 0
    _, first, which = np.unique(session[turns], return_index=True, return_inverse=True)
    codes = codes.copy()
    codes[turns] = codes[turns][first[which]]
    return codes
