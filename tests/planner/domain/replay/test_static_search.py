"""The search for the smallest fleet: counts spread over pools, judged as rarely as possible."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from planner.domain.replay.smallest_counts import fewest, remove_unneeded, spread_in_proportion
from simulation.arrays import IntArray

pools = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 5), st.integers(0, 60)), min_size=1, max_size=6
)


def arrays(rows: list[tuple[int, int, int]]) -> tuple[IntArray, IntArray, IntArray]:
    base, low, more = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return base, low, low + more


@given(rows=pools, total=st.integers(0, 400))
def test_spread_keeps_the_total_within_the_bounds(
    rows: list[tuple[int, int, int]], total: int
) -> None:
    base, low, high = arrays(rows)
    counts = spread_in_proportion(total, base, low, high)
    assert ((low <= counts) & (counts <= high)).all()
    assert counts.sum() == np.clip(total, low.sum(), high.sum())


@given(rows=pools, total=st.integers(0, 400))
def test_spread_is_in_proportion_where_the_bounds_allow(
    rows: list[tuple[int, int, int]], total: int
) -> None:
    base = np.array([row[0] for row in rows])
    assume(base.sum() > 0)
    counts = spread_in_proportion(total, base, np.zeros_like(base), np.full_like(base, 1000))
    assert (np.abs(counts - total * base / base.sum()) < 1).all()


def test_spread_gives_a_remainder_to_the_earlier_of_equals() -> None:
    base = np.array([1, 1, 1])
    assert spread_in_proportion(4, base, base * 0, base * 9).tolist() == [2, 1, 1]


@given(
    rows=pools,
    speeds=st.lists(st.integers(1, 9), min_size=6, max_size=6),
    share=st.floats(0.01, 1.0),
)
def test_found_fleet_meets_and_loses_it_with_any_instance(
    rows: list[tuple[int, int, int]], speeds: list[int], share: float
) -> None:
    base, low, high = arrays(rows)
    base = np.clip(base, low, high)
    assume(high.sum() > 0)
    speed = np.array(speeds[: len(rows)])
    needed = share * float(high @ speed)

    def meets(counts: IntArray) -> bool:
        assert ((low <= counts) & (counts <= high)).all()
        return float(counts @ speed) >= needed

    least = remove_unneeded(meets, fewest(meets, base, low, high), low, -speed)
    assert meets(least)
    for p in np.flatnonzero(least > low):
        fewer = least.copy()
        fewer[p] -= 1
        assert not fewer.any() or not meets(fewer)


def test_a_fleet_that_never_meets_is_all_there_is() -> None:
    base, low, high = np.array([2, 1]), np.array([0, 0]), np.array([7, 5])
    assert fewest(lambda counts: False, base, low, high).tolist() == [7, 5]


def test_the_search_is_short() -> None:
    """A thousand instances are found in some tens of trials."""
    asked: list[int] = []

    def meets(counts: IntArray) -> bool:
        asked.append(int(counts.sum()))
        return bool(counts.sum() >= 701)

    base, low, high = np.array([30, 10]), np.array([1, 1]), np.array([5000, 5000])
    assert fewest(meets, base, low, high).sum() == 701
    assert len(asked) < 40
