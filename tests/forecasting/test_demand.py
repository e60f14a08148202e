import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forecasting.demand import DemandSeries, SeriesKey
from forecasting.errors import ForecastError

NAN = np.nan
KEY = SeriesKey("llama", "us-east", "IW-F")


def test_edges_gaps_and_rate(series):
    demand = series([60.0, NAN, 120.0], bin_s=60.0, start_s=1000.0)
    assert (demand.bins, demand.gaps, demand.end_s) == (3, 1, 1180.0)
    np.testing.assert_array_equal(demand.rate(), [1.0, NAN, 2.0])


def test_values_are_a_frozen_copy(series):
    amounts = np.array([1.0, 2.0])
    demand = series(amounts)
    amounts[0] = 9.0
    assert demand.values[0] == 1.0
    with pytest.raises(ValueError):
        demand.values[0] = 9.0


@pytest.mark.parametrize(
    ("start_s", "end_s", "kept", "kept_start_s"),
    [
        (100.0, 140.0, [0, 1, 2, 3], 100.0),
        (110.0, 130.0, [1, 2], 110.0),
        (105.0, 135.0, [1, 2], 110.0),  # only bins wholly inside
        (0.0, 119.0, [0], 100.0),
        (135.0, 500.0, [], 140.0),
        (120.0, 120.0, [], 120.0),
    ],
)
def test_window_keeps_whole_bins(series, start_s, end_s, kept, kept_start_s):
    inside = series([0.0, 1.0, 2.0, 3.0], bin_s=10.0, start_s=100.0).window(start_s, end_s)
    np.testing.assert_array_equal(inside.values, kept)
    assert inside.start_s == kept_start_s


def test_windows_split_at_an_edge_lose_and_repeat_nothing():
    bin_s = 0.1  # edges that floats cannot hold exactly
    demand = DemandSeries(KEY, 1_700_000_000.3, bin_s, np.arange(50.0), "requests")
    for edge in range(51):
        edge_s = demand.start_s + edge * bin_s
        before, after = demand.window(0.0, edge_s), demand.window(edge_s, 2e9)
        joined = np.concatenate([before.values, after.values])
        np.testing.assert_array_equal(joined, demand.values)


def test_resample_sums_and_a_gap_makes_a_gap(series):
    coarse = series([1.0, 2.0, NAN, 4.0, 5.0, 6.0, 7.0], bin_s=10.0).resample(20.0)
    np.testing.assert_array_equal(coarse.values, [3.0, NAN, 11.0])  # the seventh is incomplete
    assert coarse.bin_s == 20.0


def test_resample_refuses_a_width_that_is_no_multiple(series):
    with pytest.raises(ForecastError, match="25 s is not a whole multiple of the bin width 10 s"):
        series([1.0, 2.0], bin_s=10.0).resample(25.0)


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.integers(1, 5), st.integers(1, 5))
def test_resampling_conserves_demand_and_composes(values, first, second):
    demand = DemandSeries(KEY, 0.0, 10.0, np.array(values), "requests")
    evenly_divided = demand.bins // (first * second) * first * second
    at_once = demand.resample(10.0 * first * second)
    in_two = demand.resample(10.0 * first).resample(10.0 * first * second)
    np.testing.assert_allclose(
        at_once.values.sum(), demand.values[:evenly_divided].sum(), rtol=1e-12
    )
    np.testing.assert_allclose(at_once.values, in_two.values, rtol=1e-12)


@pytest.mark.parametrize(
    ("later", "kept"),
    [([5.0] * 48, 48), ([5.0] * 47, 57), ([5.0, 0.0] * 30, 70), ([0.0] * 60, 70)],
)
def test_zeros_before_a_launch_go_only_if_a_busy_time_follows(series, later, kept):
    demand = series([0.0] * 10 + later, bin_s=60.0)
    launched = demand.since_launch(demand.end_s)
    assert launched.bins == kept and launched.end_s == demand.end_s
    assert launched.values.sum() == demand.values.sum()
    # A decision before the launch does not know it.
    assert demand.since_launch(demand.start_s + 600.0).bins == demand.bins
