"""Search by bisection."""

from collections.abc import Callable


def bisect_first(
    passes: Callable[[int], bool], low: int, high: int, start: int | None = None
) -> int:
    """Return the first index in ``[low, high)`` for which ``passes`` is true; ``high`` if none is.

    ``passes`` must be true for all later indices too. The search is a bisection. With ``start``, a
    guess of the answer, it first moves from there in doubling steps.
    """
    index, step_size = (low + high) // 2 if start is None else start, 1
    while low < high:  # the answer is in [low, high]
        if passes(index):
            high, next_guess = index, index - step_size
        else:
            low, next_guess = index + 1, index + step_size
        step_size *= 2
        # A step that leaves the interval ends the growth: halve from then on.
        index = next_guess if start is not None and low <= next_guess < high else (low + high) // 2
    return low
