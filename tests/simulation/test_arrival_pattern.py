"""Resampled arrivals: laws of the pattern, and the bursts of the trace on unseen seeds."""

import numpy as np
import pytest

from simulation.arrival_pattern import LEAST, MOST, ArrivalPattern, dispersion, pattern_of
from simulation.errors import SimulationError
from simulation.synthesis import arrivals_from_bins

BIN_S = 300.0
WITHIN = {1.0: 0.06, 10.0: 0.12, 60.0: 0.25}  # by scale; fewer cells tell less


def clustered(level: float, *, rate: float = 20.0, bins: int = 60, seed: int = 1) -> np.ndarray:
    """Return arrivals with that dispersion at one second, as many in every bin."""
    counts = np.full(bins, rate * BIN_S)
    return arrivals_from_bins(counts, BIN_S, 0.0, np.random.default_rng(seed), level)[0]


def of(arrival: np.ndarray) -> ArrivalPattern:
    pattern = pattern_of(arrival, np.zeros(len(arrival), np.int64), BIN_S)
    assert pattern is not None
    return pattern


@pytest.mark.parametrize("level", [1.0, 3.0, 12.0])
def test_dispersion_of_drawn_arrivals_is_the_one_asked_for(level: float) -> None:
    measured = dispersion(clustered(level, bins=200), 1.0, BIN_S)
    assert measured == pytest.approx(level, rel=0.06)


def test_counts_per_bin_are_exact_with_clusters() -> None:
    counts = np.array([0, 7, np.nan, 300, 1])
    arrival, bins, per_bin = arrivals_from_bins(counts, 10.0, 0.0, np.random.default_rng(3), 8.0)
    assert per_bin.tolist() == [0, 7, 0, 300, 1]
    assert np.array_equal(np.floor(arrival / 10.0).astype(int), bins)
    assert (np.diff(arrival) >= 0).all()
    with pytest.raises(SimulationError):
        arrivals_from_bins([5], 10.0, 0.0, np.random.default_rng(3), 0.5)


@pytest.mark.parametrize("level", [1.0, 4.0, 12.0])
@pytest.mark.parametrize("seed", [11, 12, 13])
def test_resampled_arrivals_have_the_dispersion_of_the_trace_at_each_scale(
    level: float, seed: int
) -> None:
    rate, trace = 20.0, clustered(level)
    drawn = of(trace).unit_arrivals(600_000, np.random.default_rng(seed)) / rate
    for scale, error in WITHIN.items():
        there, again = (dispersion(arrival, scale, BIN_S) for arrival in (trace, drawn))
        assert again == pytest.approx(there, rel=error), scale


def test_arrivals_have_rate_one_and_are_in_order() -> None:
    drawn = of(clustered(12.0)).unit_arrivals(300_000, np.random.default_rng(5))
    assert len(drawn) == 300_000
    assert drawn[-1] == pytest.approx(300_000, rel=0.01)
    assert (np.diff(drawn) >= 0).all() and drawn[0] >= 0


def test_the_same_seed_gives_the_same_arrivals_and_a_longer_draw_begins_alike() -> None:
    pattern = of(clustered(4.0))
    short, longer = (pattern.unit_arrivals(n, np.random.default_rng(7)) for n in (1_000, 250_000))
    assert np.array_equal(short, longer[:1_000])
    other = pattern.unit_arrivals(1_000, np.random.default_rng(8))
    assert not np.array_equal(short, other)


def test_a_pattern_does_not_depend_on_the_order_or_the_parts_of_its_requests() -> None:
    rng = np.random.default_rng(2)
    arrival = clustered(4.0, bins=8)
    series = rng.integers(0, 3, len(arrival))
    whole = pattern_of(arrival, series, BIN_S)
    mixed = rng.permutation(len(arrival))
    again = pattern_of(arrival[mixed], series[mixed], BIN_S)
    assert whole is not None and again is not None
    assert np.array_equal(whole.place, again.place) and np.array_equal(whole.start, again.start)


def test_blocks_with_few_requests_show_no_bursts() -> None:
    few = np.sort(np.random.default_rng(0).uniform(0, 10 * BIN_S, 10 * LEAST // 3))
    assert pattern_of(few, np.zeros(len(few), np.int64), BIN_S) is None
    assert pattern_of(np.zeros(0), np.zeros(0, np.int64), BIN_S) is None


def test_series_share_no_block() -> None:
    arrival = np.concatenate([np.linspace(0, BIN_S, 100, endpoint=False)] * 2)
    series = np.repeat([0, 1], 100)
    pattern = pattern_of(arrival, series, BIN_S)
    assert pattern is not None and np.diff(pattern.start).tolist() == [100, 100]


def test_of_many_requests_blocks_from_all_the_time_are_kept() -> None:
    rate = 4 * MOST / (100 * BIN_S)
    arrival = clustered(1.0, rate=np.ceil(rate), bins=100)
    pattern = of(arrival)
    assert len(pattern.place) <= MOST
    assert len(pattern.start) > 20


def test_a_pattern_of_evenly_spread_requests_is_poisson() -> None:
    drawn = of(clustered(1.0)).unit_arrivals(200_000, np.random.default_rng(4))
    gaps = np.diff(drawn)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1.0, rel=0.03)
    # Over spans longer than a block too: its time is gamma, so counts stay Poisson.
    assert dispersion(drawn / 20.0, 600.0, 6_000.0) == pytest.approx(1.0, abs=0.35)


def test_dispersion_of_a_clock_is_nil_and_of_nothing_unknown() -> None:
    assert dispersion(np.arange(0.5, 3_000.0), 10.0, BIN_S) == 0.0
    assert np.isnan(dispersion(np.zeros(0), 1.0, BIN_S))
    assert np.isnan(dispersion(np.arange(100.0), 200.0, BIN_S))
