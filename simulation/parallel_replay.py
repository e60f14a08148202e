"""Replay of one fleet on several cores: models that share nothing run in parallel threads.

A part has the pools of some models, and one thread replays it. A policy may use all models
together, so it is not split. At a scaling decision each part waits for the others. Their
observations are merged, and each part gets the actions for its pools. The result equals that of the
whole fleet, to the byte.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

import numpy as np

from simulation.arrays import Array, IntArray
from simulation.fleet import Fleet
from simulation.policy import Actions, Observation, ScalingPolicy, actions_of
from simulation.stream.parts import Part, merge_columns, merge_parts
from simulation.stream.result import StreamResult
from simulation.stream.stream import Stream
from simulation.trace import Trace

BY_POOL = (
    "firm", "lend", "keep_lent", "max_batch", "speed", "link_share", "kv_share", "prompt_chunk",
)  # fmt: skip


def simulate_in_parallel(
    stream: Stream,
    fleet: Fleet,
    parts: Sequence[Part],
    policy: ScalingPolicy,
    replay: Callable[..., StreamResult],
    progress: Callable[[float], None] | None,
) -> StreamResult:
    """Call ``replay`` for each of the ``parts`` of ``fleet`` in parallel, and merge the results.

    ``replay`` is ``simulate_stream`` with its times and seed. Only the calling thread calls
    ``progress``.
    """
    sync = _PartSync(policy, fleet, parts)

    def replay_part(i: int, part_progress: Callable[[float], None] | None) -> StreamResult:
        """Replay part ``i``, and call ``part_progress`` with the fraction that is done.

        All parts wait for unfinished requests until the last one of the fleet is due.
        """
        return replay(
            _requests_of(stream, parts, i),
            parts[i].fleet,
            _PartPolicy(sync, i),
            progress=part_progress,
            last_due=lambda due_s: sync.latest_due(i, due_s),
        )

    def replay_in_thread(i: int) -> StreamResult:
        """Replay a part in a thread, and report an exception to the first part."""
        try:
            return replay_part(i, sync.raise_if_ended)
        except BaseException as problem:
            # Wake the first part, which may wait for a message of this one.
            sync.messages.put(problem)
            raise

    # The first part runs in the calling thread, so that it can call ``progress``.
    with ThreadPoolExecutor(len(parts) - 1) as threads:
        others = [threads.submit(replay_in_thread, i) for i in range(1, len(parts))]
        try:
            results = [replay_part(0, progress)]
        except BaseException:
            sync.end()
            raise
        results += [other.result() for other in others]
    return merge_parts(fleet, parts, results)


def _requests_of(stream: Stream, parts: Sequence[Part], i: int) -> Stream:
    """Return the requests of part ``i``'s models; part 0 also gets those that no part serves."""
    part_of_model = {model: n for n, part in enumerate(parts) for model in part.fleet.models}
    in_part = np.array([part_of_model.get(model, 0) == i for model in stream.models], np.bool_)

    def chunks() -> Iterator[Trace]:
        """Yield the requests of this part in each chunk of the stream."""
        return (chunk.rows(in_part[chunk.model]) for chunk in stream.chunks())

    return replace(stream, chunks=chunks)


class _FirstPartEnded(Exception):
    """Raised in another part after the first part has ended early."""


class _PartSync:
    """Lets the parts make each scaling decision together.

    The first part collects the messages of the others and answers them. Queues are used because
    Python's barrier takes several times as long.
    """

    def __init__(self, policy: ScalingPolicy, fleet: Fleet, parts: Sequence[Part]) -> None:
        self.policy, self.fleet, self.parts = policy, fleet, parts
        self.first_counts = np.asarray(policy.reset(fleet))  # of all pools
        # Messages to the first part: (sender, message), or the exception that ended the sender
        self.messages: SimpleQueue[Any] = SimpleQueue()
        self._answers: list[SimpleQueue[Any]] = [SimpleQueue() for _ in parts]
        # Brings the columns of all parts, one part after the other, into the order of the pools.
        self._order = np.argsort(np.concatenate([part.pool_indices for part in parts]))
        self._ended = False

    def decide(self, part: int, observation: Observation) -> Actions:
        """Return the actions for part ``part``, once all parts have reached this decision."""
        answer: Actions = self._exchange(part, observation, self._decide_for_all)
        return answer

    def latest_due(self, part: int, due_s: float) -> float:
        """Return the latest of the parts' due times; that of part ``part`` is ``due_s``.

        Each part runs until the latest time.
        """
        latest_s: float = self._exchange(part, due_s, lambda dues: [max(dues)] * len(dues))
        return latest_s

    def raise_if_ended(self, fraction: float) -> None:
        """Raise ``_FirstPartEnded`` if the first part has ended. ``fraction`` is ignored."""
        if self._ended:
            raise _FirstPartEnded

    def end(self) -> None:
        """End the other parts after the first part ended early."""
        self._ended = True
        for answers in self._answers:
            answers.put(_FirstPartEnded())

    def _exchange(
        self, part: int, message: Any, answer_all: Callable[[list[Any]], list[Any]]
    ) -> Any:
        """Send the message of part ``part``, wait for those of all parts, and return the answer.

        ``answer_all`` maps the messages of all parts to their answers, in the thread of part 0.
        """
        if part:  # any part but the first sends its message to the first
            self.messages.put((part, message))
            answer = self._answers[part].get()
            if isinstance(answer, _FirstPartEnded):
                raise answer
            return answer
        messages = [message, *[None] * (len(self.parts) - 1)]
        for _ in messages[1:]:
            received = self.messages.get()
            if isinstance(received, BaseException):
                raise received
            sender, content = received
            messages[sender] = content
        first_answer, *others = answer_all(messages)
        for answers, answer in zip(self._answers[1:], others, strict=True):
            answers.put(answer)
        return first_answer

    def _decide_for_all(self, observations: list[Observation]) -> list[Actions]:
        """Call the policy once for all parts and return the actions of each."""
        merged = merge_columns(observations, self._order)
        signals = [seen.signals for seen in observations if seen.signals is not None]
        if signals:
            merged = replace(merged, signals=merge_columns(signals, self._order))
        answer = actions_of(self.policy.decide(merged))
        return [self._actions_of_part(answer, i) for i in range(len(self.parts))]

    def _actions_of_part(self, actions: Actions, part: int) -> Actions:
        """Return the actions for the pools and models of part ``part``."""
        pool_indices = list(self.parts[part].pool_indices)
        changed: dict[str, Array | None] = {}
        for name in ("targets", *BY_POOL):
            value = getattr(actions, name)
            changed[name] = None if value is None else np.asarray(value)[pool_indices]
        if actions.moves is not None:  # never between models
            changed["moves"] = actions.moves[np.ix_(pool_indices, pool_indices)]
        models = [self.fleet.models.index(name) for name in self.parts[part].fleet.models]
        for name in ("shares", "release_tokens"):
            by_model = getattr(actions, name)
            changed[name] = None if by_model is None else by_model[models]
        return replace(actions, **changed)  # type: ignore[arg-type]


class _PartPolicy(ScalingPolicy):
    """The policy of one part, which asks the shared policy through ``sync``."""

    def __init__(self, sync: _PartSync, i: int) -> None:
        self._sync, self._i = sync, i
        self.name, self.interval_s = sync.policy.name, sync.policy.interval_s
        self.wants_signals = bool(getattr(sync.policy, "wants_signals", False))

    def reset(self, fleet: Fleet) -> IntArray:
        return np.asarray(self._sync.first_counts[list(self._sync.parts[self._i].pool_indices)])

    def decide(self, observation: Observation) -> Actions:
        return self._sync.decide(self._i, observation)
