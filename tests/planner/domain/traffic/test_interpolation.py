"""Laws of bins that are cut into shorter ones."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from planner.domain.traffic.binned_source import with_shorter_bins
from planner.inputs.ingest.store import DemandColumns

HOUR_S = 3600.0
counts = st.lists(st.one_of(st.none(), st.integers(0, 10**6)), min_size=1, max_size=30)


def hours(requests: list[int | None], tokens_per_request: float = 100.0) -> DemandColumns:
    """Return a series with a count for each hour; None is a gap."""
    amounts = np.array([np.nan if count is None else count for count in requests], np.float64)
    return DemandColumns(
        "chat", None, None, None, 7200.0, HOUR_S,
        amounts, amounts * tokens_per_request, amounts * 7.0, None,
    )  # fmt: skip


@given(counts, st.sampled_from([2, 4, 5, 12, 60]))
def test_totals_and_gaps_stay_and_requests_are_whole(
    requests: list[int | None], parts: int
) -> None:
    before = hours(requests)
    after = with_shorter_bins(before, HOUR_S / parts)
    assert (after.start_s, after.bin_s) == (before.start_s, HOUR_S / parts)
    for name in ("requests", "input_tokens", "output_tokens"):
        cut, whole = getattr(after, name).reshape(-1, parts), getattr(before, name)
        assert_allclose(cut.sum(axis=1), whole, rtol=1e-9)
        assert_array_equal(np.isnan(cut), np.isnan(whole)[:, None].repeat(parts, axis=1))
        assert not (cut < 0).any()
    known = after.requests[~np.isnan(after.requests)]
    assert_allclose(known, np.round(known), atol=1e-6)
    assert_allclose(after.input_tokens, after.requests * 100.0, atol=1e-3)


@given(st.integers(0, 10**5), st.integers(1, 20))
def test_a_steady_load_stays_steady(each: int, bins: int) -> None:
    after = with_shorter_bins(hours([each * 4] * bins), HOUR_S / 4)
    assert_allclose(after.requests, each, atol=1e-6)


@given(st.lists(st.integers(1, 10**6), min_size=2, max_size=20, unique=True))
def test_a_rise_has_no_step_down_at_the_edge_of_a_bin(requests: list[int]) -> None:
    parts = 60
    after = with_shorter_bins(hours([count * 10**3 for count in sorted(requests)]), HOUR_S / parts)
    edges = np.arange(parts, len(after.requests), parts)
    assert (after.requests[edges] >= after.requests[edges - 1] * 0.9 - 2).all()


def test_other_bins_are_unchanged() -> None:
    series = hours([1, 2])
    for bin_s in (HOUR_S, 2 * HOUR_S, 1000.0):
        assert with_shorter_bins(series, bin_s) is series


def test_a_file_of_tokens_alone_is_cut_by_tokens() -> None:
    series = DemandColumns(
        "chat", None, None, None, 0.0, HOUR_S,
        np.full(3, np.nan), np.array([100.0, 200.0, 300.0]), None, None,
    )  # fmt: skip
    after = with_shorter_bins(series, HOUR_S / 2)
    assert np.isnan(after.requests).all() and after.input_tokens is not None
    assert_allclose(after.input_tokens.reshape(-1, 2).sum(axis=1), [100.0, 200.0, 300.0])
