"""How a long step says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[float, str], None]  # fraction of the whole, stage in words; may raise


def silent(fraction: float, stage: str) -> None:
    """For callers who do not want to know."""


def part(progress: Progress, start: float, end: float) -> Progress:
    """``progress`` for a step that is the part from ``start`` to ``end`` of the whole."""

    def report(fraction: float, stage: str) -> None:
        progress(start + (end - start) * fraction, stage)

    return report
