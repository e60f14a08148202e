"""Requests drawn from bins reproduce what they were drawn from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.errors import SimulationError
from simulation.synthesis import (
    EmpiricalLengths,
    IndependentLengths,
    LengthDistribution,
    SampledLength,
    requests_from_bins,
)

LENGTHS = IndependentLengths(LengthDistribution(300.0, 1.2), LengthDistribution(80.0, 0.7))


def test_log_normal_has_its_mean_and_variation():
    drawn = LengthDistribution(1000.0, 1.5).sample(400_000, np.random.default_rng(0))
    assert drawn.mean() == pytest.approx(1000.0, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(1.5, rel=0.05)
    # The median of a log-normal: mean / sqrt(1 + cv^2).
    assert np.median(drawn) == pytest.approx(1000.0 / np.sqrt(1 + 1.5**2), rel=0.02)


def test_lengths_stay_within_their_limits():
    drawn = LengthDistribution(100.0, 3.0, minimum=5, maximum=500).sample(
        10_000, np.random.default_rng(0)
    )
    assert drawn.min() == 5
    assert drawn.max() == 500
    fixed = LengthDistribution(7.0, 0.0).sample(10, np.random.default_rng(0))
    assert fixed.tolist() == [7] * 10


def test_a_sampled_length_has_the_shape_of_its_sample_and_the_mean_that_is_asked_for():
    seen = np.array([10.0, 10.0, 10.0, 130.0])
    drawn = SampledLength(seen, 80.0)
    tokens = drawn.sample(40_000, np.random.default_rng(1))
    assert set(tokens.tolist()) == {20, 260} and drawn.cv == pytest.approx(seen.std() / 40)
    assert tokens.mean() == pytest.approx(80, rel=0.03)
    assert SampledLength(seen, 0.1).sample(5, np.random.default_rng(1)).min() == 1


def test_empirical_pairs_stay_together():
    isl = np.array([1, 2, 3], np.int32)
    a, b = EmpiricalLengths(isl, isl * 10).sample(1000, np.random.default_rng(0))
    np.testing.assert_array_equal(a * 10, b)
    assert set(a.tolist()) == {1, 2, 3}


@given(st.lists(st.one_of(st.integers(0, 50), st.none()), max_size=40), st.integers(0, 2**32))
def test_counts_are_exact_and_gaps_empty(counts, seed):
    values = np.array([np.nan if c is None else c for c in counts])
    arrival, isl, osl = requests_from_bins(
        values, 10.0, 1000.0, LENGTHS, np.random.default_rng(seed)
    )
    back = np.bincount(((arrival - 1000.0) // 10.0).astype(int), minlength=len(counts))
    assert back.tolist() == [c or 0 for c in counts]
    assert (np.diff(arrival) >= 0).all()
    assert len(isl) == len(osl) == len(arrival)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5000)), min_size=1, max_size=30),
    st.integers(0, 2**32),
)
def test_token_totals_are_honoured_exactly(bins, seed):
    counts = np.array([count for count, _ in bins])
    totals = np.array([float(count + extra) for count, extra in bins])
    totals[::4] = np.nan
    arrival, isl, _ = requests_from_bins(
        counts, 1.0, 0.0, LENGTHS, np.random.default_rng(seed), (totals, None)
    )
    sums = np.bincount(arrival.astype(int), isl, minlength=len(counts))
    known = ~np.isnan(totals) & (counts > 0)
    np.testing.assert_array_equal(sums[known], totals[known])
    assert (isl >= 1).all()


def test_arrivals_within_a_bin_are_uniform():
    arrival, _, _ = requests_from_bins([100_000], 60.0, 0.0, LENGTHS, np.random.default_rng(0))
    np.testing.assert_allclose(np.quantile(arrival, [0.1, 0.5, 0.9]), [6, 30, 54], atol=0.5)


@pytest.mark.parametrize("counts", [[1.5], [-1], [np.inf]])
def test_counts_that_are_none_are_refused(counts):
    with pytest.raises(SimulationError, match="whole numbers"):
        requests_from_bins(counts, 1.0, 0.0, LENGTHS, np.random.default_rng(0))


def test_fewer_tokens_than_requests_are_refused():
    with pytest.raises(SimulationError, match="Bin 1 has 5 requests but 3 input tokens"):
        requests_from_bins([1, 5], 1.0, 0.0, LENGTHS, np.random.default_rng(0), ([9, 3], None))


def test_bad_distributions_are_refused():
    for bad in ({"mean": 0.0, "cv": 1.0}, {"mean": 1.0, "cv": -1.0}):
        with pytest.raises(SimulationError):
            LengthDistribution(**bad)
    with pytest.raises(SimulationError):
        EmpiricalLengths(np.zeros(0, np.int32), np.zeros(0, np.int32))
