"""Increases of counters, by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.inputs.live.prometheus.span_reader import MOST_SPREAD, increases, wants_extremes

N = np.nan


def of(*rows, targets=None, lowest=None, highest=None):
    last = np.array(rows, float)
    which = np.arange(len(rows)) if targets is None else np.array(targets)
    extremes = [last if bounds is None else np.array(bounds, float) for bounds in (lowest, highest)]
    return increases(last, *extremes, targets=which)


def test_a_counter_that_goes_on():
    grown = of([5, 8, 8, 20])
    assert grown.amount.tolist() == [[3, 0, 12]] and not grown.missing.any()


def test_a_counter_that_begins_anew():
    # 20 scraped, 25 reached before the restart, 4 after it.
    assert of([10, 20, 4, 6], highest=[[10, 20, 25, 6]]).amount.tolist() == [[10, 9, 2]]
    assert of([10, 20, 4, 6]).amount.tolist() == [[10, 4, 2]]


def test_growth_across_missing_scrapes_is_spread():
    grown = of([10, N, N, 40, 50])
    assert grown.amount.tolist() == [[10, 10, 10, 10]]
    assert grown.known.all() and not grown.missing.any()


def test_a_long_gap_is_no_zero():
    grown = of([10, *[N] * MOST_SPREAD, 40, 50])
    assert grown.missing.tolist() == [[True] * (MOST_SPREAD + 1) + [False]]
    assert grown.amount[0, -1] == 10


def test_a_process_that_was_replaced_counted_nothing_while_there_was_none():
    grown = of([10, N, N, 4, 9])
    assert not grown.missing.any() and grown.amount.tolist() == [[0, 0, 4, 5]]


def test_a_label_seen_for_the_first_time_counts_from_zero_and_a_new_target_from_its_first_scrape():
    label = of([1, 2, 3], [N, 7, 8], targets=[0, 0])
    assert label.amount.tolist() == [[1, 1], [7, 1]]
    target = of([1, 2, 3], [N, 1007, 1010], lowest=[[1, 1, 2], [N, 1005, 1008]])
    assert target.amount.tolist() == [[1, 1], [2, 3]]


def test_a_target_that_has_gone_counts_nothing():
    grown = of([1, 2, N], [5, 6, 7])
    assert grown.amount.tolist() == [[1, 0], [1, 1]] and not grown.missing.any()


def test_what_is_lowest_and_highest_is_asked_for_where_it_tells():
    assert not wants_extremes(np.array([[1.0, 2.0], [N, 3.0]]), np.array([0, 0]))
    assert wants_extremes(np.array([[1.0, 2.0], [N, 3.0]]), np.array([0, 1]))
    assert wants_extremes(np.array([[3.0, 2.0]]), np.array([0]))


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), min_size=3, max_size=30))
def test_known_bins_are_exact_and_no_request_is_lost(steps):
    """Against what really came: bins scraped at both ends are exact, and so is the sum."""
    came = np.array([step for step, _ in steps], float)
    counter = np.concatenate([[0.0], np.cumsum(came)])
    scraped = np.where([False, *(missed for _, missed in steps[:-1]), False], N, counter)
    last = scraped[None, :]
    grown = increases(last, last, last, targets=np.array([0]))
    both = np.isfinite(scraped[:-1]) & np.isfinite(scraped[1:])
    np.testing.assert_array_equal(grown.amount[0][both], came[both])
    known = ~grown.missing[0]
    assert np.isclose(grown.amount[0][known].sum(), came[known].sum())
