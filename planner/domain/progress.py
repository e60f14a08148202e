"""Report the progress of long steps."""

from collections.abc import Callable

# Takes the fraction that is done and the stage in words. It can raise to cancel the step.
Progress = Callable[[float, str], None]


def silent(fraction: float, stage: str) -> None:
    """Ignore progress."""


def part(progress: Progress, start: float, end: float) -> Progress:
    """Return a progress that maps a step's 0 to 1 to ``start`` to ``end`` of the whole."""

    def report(fraction: float, stage: str) -> None:
        """Pass on the progress of the step."""
        progress(start + (end - start) * fraction, stage)

    return report


def split_progress(progress: Progress, count: int) -> list[Progress]:
    """Return one progress for each of ``count`` parallel steps; ``progress`` gets their mean."""
    done = [0.0] * count

    def of(index: int) -> Progress:
        """Return the progress of part ``index``; the whole is the mean of all parts."""

        def report(fraction: float, stage: str) -> None:
            """Pass on the progress of the step."""
            done[index] = max(done[index], fraction)
            progress(sum(done) / count, stage)

        return report

    return [of(index) for index in range(count)]


def rising(progress: Progress) -> Progress:
    """Return ``progress`` that never goes back, for steps whose number is unknown."""
    furthest = 0.0

    def report(done: float, what: str) -> None:
        """Pass on the progress of the step."""
        nonlocal furthest
        furthest = max(furthest, done)
        progress(furthest, what)

    return report
