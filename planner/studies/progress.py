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


def shared(progress: Progress, count: int) -> list[Progress]:
    """One for each of ``count`` steps side by side: the whole is as far as their mean."""
    done = [0.0] * count

    def of(place: int) -> Progress:
        def report(fraction: float, stage: str) -> None:
            done[place] = max(done[place], fraction)
            progress(sum(done) / count, stage)

        return report

    return [of(place) for place in range(count)]
