"""Sizes of instances judged by few requests, for tests that look at how a run is carried out and
not at what an instance carries to a hundredth."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from planner.domain.sizing import curves
from simulation.sizing import pool
from simulation.sizing.capacity import capacity

REQUESTS = 4_000  # of a run; 32,000 to 400,000 in the product


@contextmanager
def coarse_sizes() -> Iterator[None]:
    """Neither are curves taken over that were simulated before, nor are these left to others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(capacity.__kwdefaults__, "requests", REQUESTS)
        for name in ("REQUESTS", "MOST_REQUESTS"):
            patch.setattr(pool, name, REQUESTS)
        curves._curve.cache_clear()
        try:
            yield
        finally:
            curves._curve.cache_clear()
