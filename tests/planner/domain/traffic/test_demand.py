"""Counting requests into bins."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.traffic.demand import Demand, bin_demand
from simulation.trace import Trace


def trace(arrival: list[float], *, start_s: float = 0.0, seed: int = 0) -> Trace:
    rng = np.random.default_rng(seed)
    n = len(arrival)
    return Trace(
        arrival_s=np.array(sorted(arrival), float),
        input_tokens=rng.integers(1, 500, n).astype(np.int32),
        output_tokens=rng.integers(1, 50, n).astype(np.int32),
        model=rng.integers(0, 2, n).astype(np.int16),
        region=rng.integers(0, 2, n).astype(np.int16),
        tier=rng.integers(0, 3, n).astype(np.int16),
        models=("a", "b"),
        regions=("east", "west"),
        tiers=("x", "y", "z"),
        start_s=start_s,
    )


@given(
    arrival=st.lists(st.floats(0, 5000, allow_nan=False), min_size=1, max_size=80),
    bin_s=st.sampled_from([0.5, 7.0, 60.0, 900.0]),
    start_s=st.sampled_from([0.0, 13.25, 1_715_558_400.0]),
    seed=st.integers(0, 5),
)
def test_requests_and_tokens_are_conserved_per_key(
    arrival: list[float], bin_s: float, start_s: float, seed: int
) -> None:
    requests = trace(arrival, start_s=start_s, seed=seed)
    edge_s = float(np.floor(start_s / bin_s) * bin_s)
    demand = bin_demand(requests, bin_s, edge_s, int(max(arrival) / bin_s) + 3)
    assert demand.requests.sum() == len(requests)
    assert demand.input_tokens.sum() == requests.input_tokens.sum()
    assert demand.output_tokens.sum() == requests.output_tokens.sum()
    for i, key in enumerate(demand.keys):
        of_key = (
            (requests.model == requests.models.index(key.model))
            & (requests.region == requests.regions.index(key.region))
            & (requests.tier == requests.tiers.index(key.tier))
        )
        assert demand.requests[i].sum() == of_key.sum() > 0
        assert demand.input_tokens[i].sum() == requests.input_tokens[of_key].sum()


def test_edge_belongs_to_the_bin_that_begins_there() -> None:
    demand = bin_demand(trace([0.0, 59.999999, 60.0, 119.0, 120.0]), 60.0, 0.0, 3)
    assert demand.requests.sum(axis=0).tolist() == [2, 2, 1]


def test_window_of_bins_can_be_asked_for_and_the_rest_stays_out() -> None:
    demand = bin_demand(trace([0.0, 70.0, 130.0, 300.0], start_s=60.0), 60.0, 120.0, 2)
    assert (demand.start_s, demand.end_s) == (120.0, 240.0)
    assert demand.requests.sum(axis=0).tolist() == [1, 1]


def test_series_leaves_out_what_lies_before_the_first_observation() -> None:
    nan = np.nan
    values = np.array([[nan, nan, 3.0, nan, 5.0]])
    key = bin_demand(trace([0.0]), 60.0, 0.0, 1).keys[0]
    demand = Demand((key,), 600.0, 60.0, values, values * 10, values * 2)
    series = demand.series(0)
    assert series.start_s == 720.0
    assert series.values.tolist()[0] == 3.0 and series.gaps == 1
    assert demand.gaps(600.0, 900.0) == 3
    assert demand.gaps(720.0, 840.0) == 1
    assert demand.gaps(840.0, 900.0) == 0


def test_gap_in_one_part_is_a_gap_in_the_total() -> None:
    binned = bin_demand(trace([float(i) for i in range(40)]), 10.0, 0.0, 4)
    holed = binned.requests.copy()
    holed[1, 2] = np.nan
    demand = Demand(binned.keys, 0.0, 10.0, holed, binned.input_tokens, binned.output_tokens)
    total = demand.total(binned.keys[0], "requests", lambda key: True)
    assert np.isnan(total.values).tolist() == [False, False, True, False]
    assert total.values[0] == 10
