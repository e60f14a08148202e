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
    def first_requests(self) -> IntArray:
        """Return the index of the first request of each group, ``[groups]``."""
        return self.rows[self.first]

    def copies(
        self, arrived: FloatArray, copied: IntArray, begin: FloatArray
    ) -> tuple[FloatArray, IntArray, Int32Array]:
        """Return (arrivals, originals, session ids) of the requests in copies of some groups.

        Group number ``copied[i]`` is copied to begin at ``begin[i]``, with the same times between
        its turns. ``arrived`` has the arrivals of all requests. An original is the index of the
        copied request. Copies of a single request have the session id -1.
        """
        turns = self.turns[copied]
        copy = np.repeat(np.arange(len(copied)), turns)  # number of the copy, for each copied turn
        turn = np.arange(len(copy)) - np.repeat(np.cumsum(turns) - turns, turns)  # 0 is the first
        original = self.rows[self.first[copied][copy] + turn]
        group_begin = arrived[self.first_requests[copied]]
        arrival = begin[copy] + (arrived[original] - group_begin[copy])
        return arrival, original, np.where(turns[copy] > 1, copy, -1).astype(np.int32)


def with_first_turns_code(codes: CodeArray, session: Int32Array) -> CodeArray:
    """Return ``codes [requests]``, such as regions, with equal codes in all turns of a session.

    These are the code of the session's first turn.
    """
    is_turn = session >= 0
    # First turn of each session, and the number of the session of each turn.
    _, first, number = np.unique(session[is_turn], return_index=True, return_inverse=True)
    code_of_session = codes[is_turn][first]
    codes = codes.copy()
    codes[is_turn] = code_of_session[number]
    return codes
