"""Search by bisection."""

from collections.abc import Callable


def bisect_first(
    passes: Callable[[int], bool], low: int, high: int, start: int | None = None
) -> int:
    """Return the first index in ``[low, high)`` that passes, by bisection; ``high`` if none.

    All indices after the first that passes must pass too. With ``start``, the search begins there
    and continues in growing steps.
    """
    index, step = (low + high) // 2 if start is None else start, 1
    while low < high:
        if passes(index):
            high, near = index, index - step
        else:
            low, near = index + 1, index + step
        step *= 2
        index = near if start is not None and low <= near < high else (low + high) // 2
    return low
