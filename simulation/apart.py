"""One replay on several cores: models that share nothing, each part of them in a thread.

A policy may look at all models together, so it is not cut: where a part comes to a control instant
it waits for the others, what they see is put together, and each is told its share of the answer.
What comes out is what the whole fleet's replay is, to the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from threading import Barrier, BrokenBarrierError
from typing import Any, TypeVar

import numpy as np

from simulation.arrays import Array, IntArray
from simulation.engine.streaming import simulate_stream
from simulation.fleet import Fleet
from simulation.policy import Actions, Observation, ScalingPolicy, Signals, actions_of
from simulation.stream.parts import Part, together
from simulation.stream.result import StreamResult
from simulation.stream.stream import Stream
from simulation.trace import Trace

T = TypeVar("T", Observation, Signals)
BY_POOL = (
    "firm", "lend", "keep_lent", "max_batch", "speed", "link_share", "kv_share",
)  # fmt: skip


def simulate_apart(
    stream: Stream,
    fleet: Fleet,
    parts: Sequence[Part],
    policy: ScalingPolicy,
    *,
    duration_s: float,
    seed: int,
    interval_s: float,
    piece: int,
    progress: Callable[[float], None] | None,
) -> StreamResult:
    """``simulate_stream`` of the whole ``fleet``, its ``parts`` side by side. ``progress`` is
    called by the calling thread alone."""
    meeting = _Meeting(policy, fleet, parts)

    def played(i: int, tell: Callable[[float], None] | None) -> StreamResult:
        try:
            return simulate_stream(
                _requests_of(stream, parts, i),
                parts[i].fleet,
                _Member(meeting, i),
                duration_s=duration_s,
                seed=seed,
                interval_s=interval_s,
                piece=piece,
                progress=tell,
                last_due=lambda due_s: meeting.latest(i, due_s),
            )
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(len(parts) - 1) as threads:
        others = [threads.submit(played, i, meeting.go_on) for i in range(1, len(parts))]
        try:
            results = [played(0, progress)]
        except BrokenBarrierError:  # by another, which says why
            for other in others:
                other.result()
            raise
        results += [other.result() for other in others]
    return together(fleet, parts, results)


def _requests_of(stream: Stream, parts: Sequence[Part], i: int) -> Stream:
    """Those of the part's models; of models that nobody serves, the first part's."""
    where = {model: n for n, part in enumerate(parts) for model in part.fleet.models}
    its = np.array([where.get(model, 0) == i for model in stream.models], np.bool_)

    def chunk(piece: Trace) -> Trace:
        return piece.rows(its[piece.model])

    return replace(stream, chunks=lambda: map(chunk, stream.chunks()))


class _Meeting:
    """Where the parts come together; ``seen`` and ``answers`` are theirs."""

    def __init__(self, policy: ScalingPolicy, fleet: Fleet, parts: Sequence[Part]) -> None:
        self.policy, self.fleet, self.parts = policy, fleet, parts
        self.first = np.asarray(policy.reset(fleet))
        self.barrier = Barrier(len(parts))
        self.seen: list[Observation | None] = [None] * len(parts)
        self.order = np.argsort(np.concatenate([part.whence for part in parts]))
        self.answer = Actions(self.first)
        self._due_s = np.zeros(len(parts))

    def decide(self, i: int, observation: Observation) -> Actions:
        """The answer for the part, when all have come."""
        self.seen[i] = observation
        if self.barrier.wait() == 0:
            self.answer = actions_of(self.policy.decide(self._of_all()))
        self.barrier.wait()
        return self._share(i)

    def latest(self, i: int, due_s: float) -> float:
        """When the last request of any part is due: so long all wait for what is left."""
        self._due_s[i] = due_s
        self.barrier.wait()
        return float(self._due_s.max())

    def go_on(self, fraction: float) -> None:
        """Raises where another part has ended."""
        if self.barrier.broken:
            raise BrokenBarrierError

    def _of_all(self) -> Observation:
        seen = [observation for observation in self.seen if observation is not None]
        of_all = _joined(seen, self.order)
        signals = [observation.signals for observation in seen if observation.signals is not None]
        return replace(of_all, signals=_joined(signals, self.order)) if signals else of_all

    def _share(self, i: int) -> Actions:
        answer, whence = self.answer, list(self.parts[i].whence)
        changed: dict[str, Array | None] = {"targets": np.asarray(answer.targets)[whence]}
        for name in BY_POOL:
            value = getattr(answer, name)
            changed[name] = None if value is None else np.asarray(value)[whence]
        if answer.shares is not None:
            models = [self.fleet.models.index(name) for name in self.parts[i].fleet.models]
            changed["shares"] = answer.shares[models]
        return replace(answer, **changed)  # type: ignore[arg-type]


def _joined(tables: Sequence[T], order: Array) -> T:
    """Columns by pool, in the order of the whole fleet's."""
    changed: dict[str, Any] = {}
    for field in fields(tables[0]):
        values = [getattr(table, field.name) for table in tables]
        if isinstance(values[0], np.ndarray):
            changed[field.name] = np.concatenate(values)[order]
    return replace(tables[0], **changed)


class _Member(ScalingPolicy):
    """The policy of all, as one part meets it."""

    def __init__(self, meeting: _Meeting, i: int) -> None:
        self._meeting, self._i = meeting, i
        self.name, self.interval_s = meeting.policy.name, meeting.policy.interval_s
        self.wants_signals = bool(getattr(meeting.policy, "wants_signals", False))

    def reset(self, fleet: Fleet) -> IntArray:
        return np.asarray(self._meeting.first[list(self._meeting.parts[self._i].whence)])

    def decide(self, observation: Observation) -> Actions:
        return self._meeting.decide(self._i, observation)
