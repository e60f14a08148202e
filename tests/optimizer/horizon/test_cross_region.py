"""What is sent from region to region, by hand."""

import numpy as np
import pytest

from planner.optimizer.horizon.cross_region import rerouted_tps, shares_planned
from planner.optimizer.problem import HorizonProblem
from tests.optimizer.problems import bare_problem


def shares(
    demand: list[float], serving: list[int], ways: list[list[float]] | None = None
) -> object:
    """Of the one model, ``[r, r]``."""
    return shares_planned(given(demand, ways), np.array(serving).reshape(1, 1, 3, 1))[0, 0]


def sent(demand: list[float], serving: list[int], ways: list[list[float]] | None = None) -> object:
    return rerouted_tps(given(demand, ways), np.array(serving).reshape(1, 1, 3, 1))[0]


def given(demand: list[float], ways: list[list[float]] | None) -> HorizonProblem:
    """One model, instances of 10 tokens/s in three regions."""
    cells = np.ones((1, 3, 1))
    window = bare_problem(
        ("m",),
        "abc",
        ("G",),
        theta_tps=np.array([[10.0]]),
        usd_per_hour=cells,
        start_usd=cells,
        demand_tps=np.array(demand).reshape(1, 3, 1),
        capacity_gpus=np.full((3, 1), 99),
        epsilon=0.8,
    )
    reroute = None if ways is None else np.array(ways)
    return HorizonProblem((window,), 3600.0, reroute=reroute)


def test_what_a_region_lacks_goes_where_there_is_room() -> None:
    assert sent([25, 25, 10], [1, 4, 1]) == pytest.approx(
        np.array([[0, 15, 0], [0, 0, 0], [0, 0, 0]])
    )
    assert sent([25, 5, 5], [1, 1, 2]) == pytest.approx(
        np.array([[0, 5, 10], [0, 0, 0], [0, 0, 0]])
    )
    assert not np.any(sent([25, 25, 10], [3, 3, 1]))


def test_only_on_ways_that_are_open_and_as_far_as_they_are() -> None:
    ways = [[0.0, 0.2, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    sent_tps = np.asarray(sent([25, 5, 5], [1, 9, 9], ways))
    assert sent_tps.sum() == pytest.approx(15) and sent_tps[0, 1] <= 5 + 1e-9
    # The first region's 20% is open to b; c has room for 5; the other 5 are not served.
    assert np.asarray(sent([25, 5, 5], [1, 9, 1], ways))[0] == pytest.approx([0, 5, 5])
    assert not np.any(sent([25, 5, 5], [1, 9, 9], [[0.0] * 3] * 3))


def test_shares_are_of_what_each_region_is_asked_for() -> None:
    """a keeps 10 of its 25 and sends 15 to b; b sends nothing, so that the router is free there."""
    assert shares([25, 25, 10], [1, 4, 1]) == pytest.approx(
        np.array([[0.4, 0.6, 0], [0, 0, 0], [0, 0, 0]])
    )
    # What nobody has room for stays: the router finds what is best for it.
    assert np.asarray(shares([25, 5, 5], [1, 1, 1]))[0] == pytest.approx([0.6, 0.2, 0.2])
    assert not np.any(shares([0, 0, 0], [1, 1, 1]))


def test_shares_keep_to_ways_that_are_open() -> None:
    ways = [[0.0, 0.2, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    sent_share = np.asarray(shares([25, 5, 5], [1, 9, 9], ways))
    assert sent_share.sum(axis=1) == pytest.approx([1.0, 0.0, 0.0])
    assert sent_share[0, 0] == pytest.approx(0.4) and sent_share[0, 1] <= 0.2 + 1e-9
