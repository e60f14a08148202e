"""Report the progress of long steps."""

from collections.abc import Callable
from functools import partial

# Takes the fraction that is done and the stage in words. It can raise to cancel the step.
Progress = Callable[[float, str], None]


def silent(fraction: float, stage: str) -> None:
    """Ignore progress."""


def part(progress: Progress, start: float, end: float) -> Progress:
    """Return the progress of a step that takes from ``start`` to ``end`` of the whole (0 to 1).

    The step reports fractions from 0 to 1. Start and end are rough shares of the time.
    """

    def report(fraction: float, stage: str) -> None:
        """Report the progress of the step as progress of the whole."""
        progress(start + (end - start) * fraction, stage)

    return report


def split_progress(progress: Progress, count: int) -> list[Progress]:
    """Return a progress for each of ``count`` parallel steps; ``progress`` gets their mean."""
    done = [0.0] * count

    def report(index: int, fraction: float, stage: str) -> None:
        """Report the progress of step ``index`` as progress of the whole."""
        done[index] = max(done[index], fraction)
        progress(sum(done) / count, stage)

    return [partial(report, index) for index in range(count)]


def rising(progress: Progress) -> Progress:
    """Return a progress that never goes back, for steps whose number is unknown."""
    largest = 0.0

    def report(fraction: float, stage: str) -> None:
        """Report the largest fraction so far."""
        nonlocal largest
        largest = max(largest, fraction)
        progress(largest, stage)

    return report
