"""Sizes under bursts: laws of the dispersion, and the Poisson size without any."""

import itertools
from functools import cache

import numpy as np
import pytest

from simulation.arrival_pattern import ArrivalPattern, pattern_of
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.sizing.capacity import SizingCase, capacity
from simulation.sizing.pool import PoolCurve, pool_curve
from simulation.synthesis import arrivals_from_bins
from tests.simulation.sizing.test_pool import SAMPLE, SPEED, TIGHT

BIN_S = 300.0


def pattern(level: float, seed: int = 1) -> ArrivalPattern:
    """Return the pattern of 20 requests/s with that dispersion at one second."""
    counts = np.full(30, 20.0 * BIN_S)
    arrival = arrivals_from_bins(counts, BIN_S, 0.0, np.random.default_rng(seed), level)[0]
    found = pattern_of(arrival, np.zeros(len(arrival), np.int64), BIN_S)
    assert found is not None
    return found


@cache
def curve(level: float | None) -> PoolCurve:
    arrivals = 1.0 if level is None else pattern(level)
    return pool_curve(SizingCase(SPEED, SAMPLE, TIGHT, burstiness=arrivals), max_instances=8)


def test_capacity_falls_as_dispersion_rises() -> None:
    levels = [curve(level).max_rps for level in (1.0, 4.0, 16.0)]
    for calmer, burstier in itertools.pairwise(levels):
        assert (burstier < calmer).all()
    assert levels[2][-1] < 0.9 * levels[0][-1]


def test_without_bursts_it_is_the_poisson_size() -> None:
    assert curve(1.0).max_rps == pytest.approx(curve(None).max_rps, rel=0.03)


def test_saturation_does_not_depend_on_bursts() -> None:
    any_tier = Tier("any")
    calm = capacity(SizingCase(SPEED, SAMPLE, any_tier)).max_rps
    assert capacity(
        SizingCase(SPEED, SAMPLE, any_tier, burstiness=pattern(8.0))
    ).max_rps == pytest.approx(calm)


def test_a_pool_takes_bursts_that_one_instance_cannot() -> None:
    """Twelve requests at the same moment: one instance is late at any rate."""
    moments = np.repeat(np.arange(0.0, 40 * BIN_S, 1.0), 12)
    together = pattern_of(moments, np.zeros(len(moments), np.int64), BIN_S)
    assert together is not None
    with pytest.raises(SimulationError):
        capacity(SizingCase(SPEED, SAMPLE, TIGHT, burstiness=together))
    each = pool_curve(SizingCase(SPEED, SAMPLE, TIGHT, burstiness=together), max_instances=16)
    calm = pool_curve(SizingCase(SPEED, SAMPLE, TIGHT), max_instances=16)
    assert each.max_rps[0] < 0.01 * calm.max_rps[0]
    assert each.max_rps[15] > 0.3 * calm.max_rps[15]
    # Prompts that take longer than the limit alone have no size at any dispersion.
    with pytest.raises(SimulationError):
        pool_curve(SizingCase(SPEED, ([8000], [10]), Tier("t", ttft_s=0.1), burstiness=together))
