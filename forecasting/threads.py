"""Two chunks of arrays at a time, each with a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from threadpoolctl import threadpool_limits

T = TypeVar("T")


def side_by_side(do: Callable[..., T], *of: Sequence[Any]) -> list[T]:
    """``do`` of each, two at a time: arrays are worked on outside Python's lock."""
    if len(of[0]) < 2:
        return [do(*one) for one in zip(*of, strict=True)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(do, *of))


def alone() -> threadpool_limits:
    """One BLAS thread: on busy cores several wait for each other."""
    return threadpool_limits(limits=1, user_api="blas")
