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
    """Return ``function`` of each set of arguments, in order, computed in two threads.

    Each of ``arguments`` has the values of one parameter. The threads run at the same time, because
    NumPy releases Python's lock.
    """
    if len(arguments[0]) < 2:
        return [function(*call_arguments) for call_arguments in zip(*arguments, strict=True)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        return list(pool.map(function, *arguments))


def single_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS has one thread, since several wait for each other if busy."""
    limit: Callable[..., AbstractContextManager[Any]]
    limit = _controller(scipy_loaded="scipy.linalg" in sys.modules).limit
    return limit(limits=1, user_api="blas")


@cache
def _controller(*, scipy_loaded: bool) -> ThreadpoolController:  # noqa: ARG001 - the cache's key
    """Return the controller of the BLAS libraries that are loaded; to find them is slow."""
    return ThreadpoolController()
