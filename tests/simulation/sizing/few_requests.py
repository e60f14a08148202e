"""Sizes judged by few requests: for tests of what a curve does, not of its last percent."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from simulation.sizing import pool
from simulation.sizing.capacity import capacity


@contextmanager
def few_requests(requests: int) -> Iterator[pytest.MonkeyPatch]:
    """Simulate so many requests per rate; 32,000 to 400,000 in the product."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(capacity.__kwdefaults__, "requests", requests)
        for name in ("REQUESTS", "MOST_REQUESTS"):
            patch.setattr(pool, name, requests)
        yield patch
