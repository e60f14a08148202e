"""Series built by hand: one key, fifteen-minute bins from the epoch on unless said otherwise."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from forecasting.arrays import FloatArray
from forecasting.demand import REQUESTS, DemandSeries, SeriesKey

Build = Callable[..., DemandSeries]


def build(
    values: Sequence[float] | FloatArray,
    bin_s: float = 900.0,
    start_s: float = 0.0,
    model: str = "llama",
    unit: str = REQUESTS,
) -> DemandSeries:
    amounts = np.asarray(values, dtype=np.float64)
    return DemandSeries(SeriesKey(model, "us-east", "IW-F"), start_s, bin_s, amounts, unit)


def daily(days: int, noise: float = 0.0, bin_s: float = 900.0, seed: int = 0) -> FloatArray:
    """Demand with a daily cycle around 100, never negative; ``noise`` as a share of it."""
    rng = np.random.default_rng(seed)
    hours = np.arange(round(days * 86_400 / bin_s)) * bin_s / 3600
    level = 100 + 60 * np.sin(2 * np.pi * hours / 24) + 20 * np.cos(4 * np.pi * hours / 24)
    return np.maximum(0.0, level * (1 + noise * rng.standard_normal(hours.size)))


@pytest.fixture
def series() -> Build:
    return build


@pytest.fixture
def daily_demand() -> Callable[..., FloatArray]:
    return daily
