"""Compute independent parts of a run: backtests of policies, stress tests, months of an outlook.

A run hands its parts to ``Parts.map`` and gets their results in order. ``Parts`` computes them
here, two at a time. ``planner.services.run_parts`` lets any worker compute them.

Every worker that takes part in a run executes the same body up to the same ``map``. So a part must
be a pure function of the run's inputs and of the results of earlier parts: names, order and results
are the same in every process. A result must be data that ``planner.domain.encoding`` can write.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from planner.domain.parallel import DEFAULT_THREADS, begun, run_in_parallel
from planner.domain.progress import Progress

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Part(Generic[T_co]):
    """One independent piece of work; ``name`` is shown to users, such as "Backtest: LT-I"."""

    name: str
    compute: Callable[[Progress], T_co]


class Parts:
    """Computes the independent parts of one run in this process, for commands and tests.

    A subclass lets other workers take part.
    """

    def map(
        self,
        parts: Sequence[Part[T]],
        progress: Progress,
        *,
        shared: Sequence[Any] = (),
        at_once: int = DEFAULT_THREADS,
    ) -> list[T]:
        """Return the results of the parts, in their order.

        ``shared`` lists large objects that every process has already, such as profiles. Results
        refer to them instead of copying them. ``at_once`` limits threads within one process. An
        exception of a part is raised here.
        """
        del shared  # nothing leaves this process
        return run_in_parallel([part.compute for part in parts], progress, at_once=at_once)

    def ahead(
        self,
        parts: Sequence[Part[T]],
        *,
        shared: Sequence[Any] = (),
        at_once: int = DEFAULT_THREADS,
    ) -> AbstractContextManager[Callable[[Progress], list[T]]]:
        """Begin parts whose results are needed later, in parallel with the parts that follow.

        Yields a function that takes the progress to report to, waits for the parts, and returns
        their results in order. If ``at_once`` is 1, or if other workers take part, the parts begin
        only when it is called.
        """
        del shared  # nothing leaves this process
        if at_once == 1:
            return nullcontext(partial(self.map, parts, at_once=1))
        return begun([part.compute for part in parts], at_once=1, background=True)

    def show(self, preview: Any) -> None:
        """Show what is known of the answer so far; ``preview`` is a dataclass of plain data.

        A command shows only the finished answer, so nothing happens here.
        """

    def close(self) -> None:
        """Announce that no further parts follow."""


IN_PROCESS = Parts()
