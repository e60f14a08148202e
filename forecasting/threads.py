"""Two chunks of arrays at a time, each with a thread of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")


def side_by_side(do: Callable[..., T], *of: Sequence[Any]) -> list[T]:
    """``do`` of each, two at a time: arrays are worked on outside Python's lock."""
    if len(of[0]) < 2:
        return [do(*arguments) for arguments in zip(*of, strict=True)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(do, *of))


def alone() -> AbstractContextManager[Any]:
    """One BLAS thread: on busy cores several wait for each other."""
    limit: Callable[..., AbstractContextManager[Any]]
    limit = _libraries("scipy.linalg" in sys.modules).limit
    return limit(limits=1, user_api="blas")


@cache
def _libraries(scipy: bool) -> ThreadpoolController:
    """To find them takes as long as many a forecast; scipy brings one of its own, once loaded."""
    return ThreadpoolController()
