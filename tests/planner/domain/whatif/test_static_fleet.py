"""A static fleet for other demand: its load grows, its spare replicas do not."""

import numpy as np
import pytest

from planner.domain.sizing.sizing import Sizes
from planner.domain.whatif.static_fleet import (
    StaticFleet,
    exceeded_limit,
    instances_for,
    spare_of,
)
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.user_facts import UserFacts
from tests.planner.domain.builders import EAST, scenario

SIZES = Sizes(np.array([[10.0]]), np.array([[[10.0, 20.0, 30.0, 40.0]]]), {}, ())


def needed(held: int, spare: int, peak_tps: float, growth: float) -> int:
    counts = np.array([[[held]]])
    fleet = StaticFleet(counts, spare_of(counts, spare, by_pool=False), 0)
    return int(instances_for(fleet, SIZES, SIZES, np.array([[peak_tps]]), growth)[0, 0, 0])


@pytest.mark.parametrize("held", [1, 2, 3, 7])
@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize("peak_tps", [0.0, 5.0, 1000.0])
def test_unchanged_demand_needs_the_fleet_itself_and_more_demand_no_fewer(
    held: int, spare: int, peak_tps: float
) -> None:
    assert needed(held, spare, peak_tps, 1.0) == held
    counts = [needed(held, spare, peak_tps, growth) for growth in (0.5, 1.0, 2.0, 5.0, 20.0)]
    assert counts == sorted(counts)


def test_idle_capacity_serves_more_demand_before_replicas_are_added() -> None:
    # One replica serves 10 tokens/s, and one is spare.
    assert [needed(2, 1, 1.0, growth) for growth in (1, 10, 11, 21)] == [2, 2, 3, 4]


def test_the_load_of_a_fleet_exceeds_what_one_replica_less_serves() -> None:
    # Demand alone says one replica. Three were needed, so ten times the load needs over 20.
    assert needed(3, 0, 1.0, 10.0) == 21


@pytest.mark.parametrize(("by_pool", "spare"), [(True, [1, 0, 1]), (False, [0, 0, 1])])
def test_each_pool_in_use_or_the_largest_of_a_region_holds_the_spare(
    by_pool: bool, spare: list[int]
) -> None:
    assert spare_of(np.array([[[2, 0, 3]]]), 1, by_pool=by_pool).tolist() == [[spare]]


@pytest.mark.parametrize(("gpus", "fits"), [(32, True), (0, False)])
def test_a_pool_without_gpus_is_named(gpus: int, fits: bool) -> None:
    hardware = build_hardware(scenario(regions=[EAST | {"capacity": {"G": gpus}}]), UserFacts())
    assert (exceeded_limit(hardware, np.array([[[1]]])) == "") is fits
