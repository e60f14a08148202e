"""Sizes of instances, and replays of plans below the replica, judged by few requests: for tests
that look at how a run is carried out and not at what an instance carries to a hundredth."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import pytest

from planner.domain.sizing import curves
from simulation.provisioning import device_search, replay, windows
from simulation.search import evaluation
from simulation.sizing import pool
from simulation.sizing.capacity import capacity
from simulation.sizing.pool import PoolCurve
from tests.single_run import once

REQUESTS = 4_000  # of a run; 32,000 to 400,000 in the product
SIMULATED = (2, 8)  # pool sizes, up to 64 in the product
PRECISION = 0.02  # of a pool's rate, 0.004 in the product
SEARCHED = 1_000  # of a run of a search for deployments; 4,000 to 8,000 in the product


@lru_cache(maxsize=curves.CACHED_CURVES)
def _coarse_curve(key: curves._CurveKey) -> PoolCurve:
    """Simulate each curve once for all processes of the suite."""
    return once(f"curve-{key.digest}", lambda: pool.pool_curve(key.case))


@contextmanager
def coarse_sizes() -> Iterator[None]:
    """Size by few requests and few pool sizes; curves as in the product are kept apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(capacity.__kwdefaults__, "requests", REQUESTS)
        for name in ("REQUESTS", "MOST_REQUESTS"):
            patch.setattr(pool, name, REQUESTS)
        patch.setattr(pool, "SIMULATED", SIMULATED)
        patch.setattr(pool, "PRECISION", PRECISION)
        for name in ("REQUESTS", "PD_REQUESTS"):
            patch.setattr(evaluation, name, SEARCHED)
        patch.setattr(curves, "_curve", _coarse_curve)
        yield


@contextmanager
def coarse_replays() -> Iterator[None]:
    """Operators are visited once per layer and token, so that a replay of all takes seconds; the
    search for a plan on fewer devices ends sooner too, which tests of the simulator prove."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "MAX_VISITS", 60_000)  # 3,000,000 in the product
        patch.setattr(replay, "MIN_REQUESTS", 30)  # requests, 400 in the product
        patch.setattr(windows, "MAX_VISITS", 300_000)  # 4,000,000 in the product
        patch.setattr(device_search, "ANNEALING_STEPS", 10_000)  # 100,000 in the product
        yield
