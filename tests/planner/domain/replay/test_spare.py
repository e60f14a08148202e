"""What a fleet carries with the scenario's spare gone, and the fewest to add: against every way to
lose it and every fleet there is, counted out."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from planner.domain.replay.replay import prepare
from planner.domain.replay.replica_loss import (
    capacity_after_loss,
    interactive_demand,
    survival_gap,
    with_spare,
)
from planner.domain.replay.serving_capacity import survives
from planner.domain.study import Study
from planner.inputs.scenario.settings import SpareSettings, settings_of
from tests.planner.domain import builders as make

LENGTHS = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}
THETA = 1000.0  # input tokens/s of an instance, so that n carry n times it
BIN_S, BINS = 60.0, 10
EAST = {"name": "east", "capacity": {"G": 8}, "usd_per_gpu_hour": {"G": 2},
        "carbon_g_per_kwh": 400}  # fmt: skip
WAYS = {
    "pool": SpareSettings(instances=2),
    "one": SpareSettings(instances=1, by_pool=False),
    "region": SpareSettings(region=True),
    "both": SpareSettings(instances=1, region=True),
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Ten minutes of about 1,500 input tokens/s in two regions."""
    stored = make.demand_file(tmp_path_factory.mktemp("spare"), {"m": [900.0] * 60})
    scenario = make.scenario(
        regions=[EAST, make.WEST | {"capacity": {"G": 8}}],
        traffic={"sources": [make.source(regions={"east": 0.5, "west": 0.5}, **LENGTHS)]},
        horizon={"duration_s": BIN_S * BINS, "period_s": 300},
    )
    hardware, traffic, window = make.parts(scenario, stored)
    requests = traffic.requests(window.start_s, window.end_s, scenario.seed)
    sizes = make.sizes(hardware, THETA)
    return prepare(settings_of(scenario), hardware, traffic, window, sizes, requests)


def wanting(study: Study, spare: SpareSettings) -> Study:
    settings = study.settings
    return replace(study, settings=replace(settings, plan=replace(settings.plan, spare=spare)))


def worst(counts: tuple[int, int], spare: SpareSettings) -> int:
    """Instances left in two regions of one pool each, by hand."""
    regions = [None, 0, 1] if spare.region else [None]
    if spare.by_pool or not spare.instances:
        fewer = [[max(0, count - spare.instances) for count in counts]]
    else:
        fewer = [[max(0, c - spare.instances * (r == lost)) for r, c in enumerate(counts)]
                 for lost in (0, 1)]  # fmt: skip
    return min(
        sum(c for r, c in enumerate(counts_left) if r != gone)
        for counts_left in fewer
        for gone in regions
    )


@pytest.mark.parametrize("way", WAYS)
def test_what_is_left_is_the_least_over_every_way_to_lose_it(study: Study, way: str) -> None:
    toy = wanting(study, WAYS[way])
    fleets = list(product(range(5), repeat=2))
    counts = np.array(fleets)[:, None, :, None]
    remaining = capacity_after_loss(toy, counts)[:, 0, 0] / THETA
    assert remaining.tolist() == [worst(fleet, WAYS[way]) for fleet in fleets]


@pytest.mark.parametrize("way", WAYS)
def test_spare_is_added_until_every_bin_is_carried_without_it(study: Study, way: str) -> None:
    toy = wanting(study, WAYS[way])
    need = int(np.ceil(interactive_demand(toy).max() / THETA))
    fleet = with_spare([toy], np.array([1, 0]))
    assert worst((int(fleet[0]), int(fleet[1])), WAYS[way]) >= need
    fewest = min(
        sum(both) for both in product(range(1, 9), range(9)) if worst(both, WAYS[way]) >= need
    )
    assert fleet.sum() == fewest
    assert (with_spare([toy], fleet) == fleet).all()


def test_without_spare_asked_for_a_flat_fleet_stays_as_it_is(study: Study) -> None:
    assert with_spare([study], np.array([1, 0])).tolist() == [1, 0]
    assert survival_gap(study, 0.0) == 0.0


def test_no_more_is_added_than_there_are_gpus(study: Study) -> None:
    fleet = with_spare([wanting(study, SpareSettings(instances=100))], np.array([1, 1]))
    room = study.hardware.capacity_gpus.sum(axis=1) // study.fleet(fleet).pools[0].gpus_per_instance
    assert fleet.tolist() == room.tolist()


def test_regions_closed_to_each_other_help_nobody(study: Study) -> None:
    """What is asked of each, about 750 tokens/s, has to be carried there with two gone."""
    hardware = replace(study.hardware, latency_s=np.array([[0.0, np.inf], [np.inf, 0.0]]))
    closed = wanting(replace(study, hardware=hardware), WAYS["pool"])
    need = np.ceil(interactive_demand(closed).max(axis=0) / THETA)[0]
    assert with_spare([closed], np.array([1, 0])).tolist() == (need + 2).tolist()
    lopsided = cast(Any, SimpleNamespace(ready=np.array([[8.0] * BINS, [2.0] * BINS]),
                                         interval_s=BIN_S))  # fmt: skip
    assert survives(closed, lopsided, [0, 1]) == 0.0
    assert survives(wanting(study, WAYS["pool"]), lopsided, [0, 1]) == 1.0


def test_a_run_lacks_what_its_share_of_the_time_is_below_its_tiers(study: Study) -> None:
    toy = wanting(study, WAYS["pool"])
    series = cast(Any, SimpleNamespace(ready=np.array([[4.0] * 4 + [6.0] * 6, [0.0] * BINS]),
                                       interval_s=BIN_S))  # fmt: skip
    share = survives(toy, series, [0, 1])
    need = np.ceil(interactive_demand(toy).ravel() / THETA)
    carried = np.array([4] * 4 + [6] * 6) - 2
    assert share == pytest.approx(float((carried >= need).mean()))
    (tier,) = toy.hardware.tiers
    assert survival_gap(toy, share) == pytest.approx(max(0.0, tier.attainment - cast(float, share)))
    assert survival_gap(toy, None) == 0.0
