"""Calls that begin in several threads at the same moment."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TypeVar

from django.db import connections

Given = TypeVar("Given")


def at_once(times: int, act: Callable[[int], Given]) -> list[Given]:
    """Return what ``act(0)`` and so on give, each in a thread with its own connections."""
    begin = threading.Barrier(times)

    def acted(number: int) -> Given:
        begin.wait()
        try:
            return act(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(times) as pool:
        begun = [pool.submit(copy_context().run, acted, number) for number in range(times)]
        return [each.result() for each in begun]
