"""Run array code in two threads, and limit the threads of BLAS."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

T = TypeVar("T")


def map_in_two_threads(function: Callable[..., T], *arguments: Sequence[Any]) -> list[T]:
    """Map ``function`` over ``arguments`` in two threads; return the results in order.

    The threads run at the same time, because NumPy releases Python's lock.
    """
    if len(arguments[0]) < 2:
        return [function(*call_arguments) for call_arguments in zip(*arguments, strict=True)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(function, *arguments))


def single_blas_thread() -> AbstractContextManager[Any]:
    """Limit BLAS to one thread, since on busy cores several wait for each other."""
    limit: Callable[..., AbstractContextManager[Any]]
    limit = _controller(scipy_loaded="scipy.linalg" in sys.modules).limit
    return limit(limits=1, user_api="blas")


@cache
def _controller(*, scipy_loaded: bool) -> ThreadpoolController:  # noqa: ARG001 - the cache's key
    """Return the controller of the BLAS libraries loaded now; cached, as finding them is slow."""
    return ThreadpoolController()
