"""Deferrable work goes where and when it costs least; GPUs are reserved where that pays."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from planner.optimizer.horizon import HorizonProblem, solve_horizon
from planner.optimizer.problem import PlanningProblem, Weights
from planner.optimizer.reservations import cheapest_reservation, reservation_usd
from planner.optimizer.shifting import Work, cheapest_shift
from simulation.arrays import FloatArray, IntArray
from tests.optimizer.problems import bare_problem

HOUR_S = 3600.0


def window(prices: FloatArray, rho: FloatArray) -> PlanningProblem:
    """One model and GPU type in regions with ``prices [r]`` and demand ``rho [r]``."""
    shape = (1, len(prices), 1)
    return bare_problem(
        ("m",), "xyz"[: len(prices)], ("g",),
        current=np.full(shape, 99), theta_tps=np.array([[100.0]]),
        usd_per_hour=prices.reshape(shape), demand_tps=rho.reshape(shape),
        capacity_gpus=np.full((len(prices), 1), 99),
    )  # fmt: skip


def horizon(prices: FloatArray, rho: FloatArray | float = 0.0) -> HorizonProblem:
    """A period per row of ``prices [p, r]``."""
    demand = np.broadcast_to(rho, prices.shape)
    windows = tuple(window(*rows) for rows in zip(prices, demand, strict=True))
    return HorizonProblem(windows, period_s=HOUR_S)


def work(*rows: tuple[float, int, int, int]) -> Work:
    """Parts of tokens/s for an hour, home region, first and last period."""
    columns = np.array(rows, float).T
    home, first, last = columns[1:].astype(np.int64)
    return Work(columns[0] * HOUR_S, np.zeros_like(home), home, first, last)


def done(problem: HorizonProblem, parts: Work, reach: FloatArray | IntArray) -> FloatArray:
    shift = cheapest_shift(problem, parts, np.asarray(reach, bool))
    assert shift is not None
    return np.asarray(shift.tokens[:, 0] / HOUR_S)


@pytest.mark.parametrize("seed", range(5))
def test_each_part_takes_its_cheapest_place_within_its_deadline(seed: int) -> None:
    rng = np.random.default_rng(seed)
    prices, reach = rng.uniform(1, 9, (6, 3)), rng.random((3, 3)) < 0.5
    np.fill_diagonal(reach, val=True)
    first = rng.integers(0, 6, 12)
    last = np.minimum(5, first + rng.integers(0, 4, 12))
    home, tokens = rng.integers(0, 3, 12), rng.uniform(100, 900, 12)
    parts = work(*zip(tokens, home, first, last, strict=True))
    shift = cheapest_shift(horizon(prices), parts, reach)
    assert shift is not None
    best = sum(
        each / 100 * prices[a : b + 1, reach[at]].min()
        for each, at, a, b in zip(tokens, home, first, last, strict=True)
    )
    assert shift.bound == pytest.approx(best, rel=1e-5)
    assert shift.tokens.sum() == pytest.approx(tokens.sum() * HOUR_S)


def test_by_carbon_work_goes_where_power_is_cleanest() -> None:
    prices, rng = np.ones((6, 3)), np.random.default_rng(1)
    intensity = rng.uniform(0.05, 0.6, prices.shape)  # kg per kWh
    plain = horizon(prices)
    windows = tuple(
        replace(one, weights=Weights(usd=0.0, kg=1.0), kw=np.full((1, 3, 1), 2.0), kg_per_kwh=clean)
        for one, clean in zip(plain.windows, intensity, strict=True)
    )
    problem = HorizonProblem(windows, period_s=HOUR_S)
    parts = work((300.0, 0, 0, 3), (500.0, 1, 2, 5))
    tokens = done(problem, parts, np.ones((3, 3)))
    expected = np.zeros_like(intensity)
    for rate, first, last in ((300.0, 0, 3), (500.0, 2, 5)):
        cleanest = np.argmin(intensity[first : last + 1])
        expected[np.unravel_index(first * 3 + cleanest, intensity.shape)] += rate
    np.testing.assert_allclose(tokens, expected, atol=1e-3)


def test_work_fills_free_capacity_first_and_the_soonest_of_equal_periods() -> None:
    flat = np.ones((3, 1))
    np.testing.assert_allclose(
        done(horizon(flat), work((100, 0, 0, 2)), [[1]])[:, 0], [100, 0, 0], atol=1e-6
    )
    # Two bins: the fleet for the peak of 300 has 100 tokens/s to spare on average.
    busy = replace(horizon(np.array([[5.0], [1.0]])))
    bins = replace(busy.windows[0], demand_tps=np.array([[[300.0, 100.0]]]))
    idle = replace(busy.windows[1], demand_tps=np.zeros((1, 1, 2)))
    shifted = done(replace(busy, windows=(bins, idle)), work((250, 0, 0, 1)), [[1]])
    np.testing.assert_allclose(shifted[:, 0], [100, 150], atol=1e-6)


def test_the_bound_is_below_the_plan_of_whole_replicas() -> None:
    prices = np.array([[5.0, 4.0], [1.0, 3.0], [2.0, 2.0]])
    problem = horizon(prices, 130.0)
    shift = cheapest_shift(problem, work((310, 0, 0, 2), (90, 1, 0, 1)), np.ones((2, 2), bool))
    assert shift is not None
    loaded = tuple(
        replace(each, demand_tps=each.demand_tps + tokens[..., None] / HOUR_S)
        for each, tokens in zip(problem.windows, shift.tokens, strict=True)
    )
    plan = solve_horizon(replace(problem, windows=loaded), gap=0.0)
    assert shift.bound <= plan.objective + 1e-9


def test_no_fleet_for_the_work_gives_no_shift() -> None:
    assert (
        cheapest_shift(horizon(np.ones((1, 1))), work((1e6, 0, 0, 0)), np.eye(1, dtype=bool))
        is None
    )


@pytest.mark.parametrize("seed", range(5))
def test_the_reservation_is_the_cheapest_of_all_counts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target = rng.integers(0, 6, (5, 1, 2, 1))
    problem = replace(
        horizon(np.full((5, 2), 2.0)),
        reserved_usd=rng.uniform(0.5, 2.5, (2, 1)), on_demand_usd=rng.uniform(1, 3, (5, 2, 1)),
    )  # fmt: skip
    chosen = reservation_usd(problem, target, cheapest_reservation(problem, target)).sum()
    best = min(
        reservation_usd(problem, target, np.array(counts).reshape(2, 1)).sum()
        for counts in itertools.product(range(7), repeat=2)
    )
    assert chosen == pytest.approx(best)
    assert chosen <= 0


@pytest.mark.parametrize(
    ("usd", "reserved", "objective"),
    [
        # The others are in use for half of the periods.
        ([2.0, 2.0, 2.0, 2.0], 1, 4 * 1.2 + 2 * 2 * 2.0),
        # The hours of use have high prices.
        ([3.0, 0.5, 0.5, 3.0], 3, 4 * 3 * 1.2),
    ],
)
def test_the_program_buys_the_mix_of_least_cost(
    usd: list[float], reserved: int, objective: float
) -> None:
    need, hourly = np.array([[300.0], [100.0], [100.0], [300.0]]), np.array(usd)[:, None]
    problem = replace(
        horizon(hourly, need), reserved_usd=np.array([[1.2]]), on_demand_usd=hourly[:, :, None]
    )
    plan = solve_horizon(problem, gap=0.0)
    assert plan.reserved.tolist() == [[reserved]]
    assert plan.objective == pytest.approx(objective)
    assert plan.bound == pytest.approx(objective, rel=1e-4)
