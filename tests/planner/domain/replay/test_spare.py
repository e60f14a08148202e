"""What a fleet carries with the scenario's spare gone, and the fewest to add: against every way to
lose it and every fleet there is, counted out."""

from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from planner.domain.progress import silent
from planner.domain.replay.policy_context import SharedInputs
from planner.domain.replay.replay import BRIEF, ReplayOptions, run_policy
from planner.domain.replay.replica_loss import (
    capacity_after_loss,
    interactive_demand,
    interactive_targets,
    losses_of,
    survival_of,
    with_spare_capacity,
    worst_loss,
)
from planner.domain.replay.static_search import meets_goals, with_spare
from planner.domain.study import PolicyRun, Study
from planner.inputs.scenario.settings import SpareSettings
from planner.policies.choice import policy_of
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
    return make.study(scenario, stored, THETA)


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
    fleet = with_spare_capacity([toy], np.array([1, 0]))
    assert worst((int(fleet[0]), int(fleet[1])), WAYS[way]) >= need
    fewest = min(
        sum(both) for both in product(range(1, 9), range(9)) if worst(both, WAYS[way]) >= need
    )
    assert fleet.sum() == fewest
    assert (with_spare_capacity([toy], fleet) == fleet).all()


@pytest.mark.parametrize("minimum", [0, 1])
@pytest.mark.parametrize("spare", [1, 2])
def test_a_static_fleet_with_spare_replicas_survives_their_loss(
    study: Study, spare: int, minimum: int
) -> None:
    """Also below the minimum of a pool, since nothing replaces lost replicas."""
    hardware = replace(study.hardware, minimum=np.full_like(study.hardware.minimum, minimum))
    toy = wanting(replace(study, hardware=hardware), SpareSettings(instances=spare))
    counts, goals = np.array([1, 1]), interactive_targets(toy)
    assert not meets_goals(toy, np.maximum(counts - spare, 0), goals, 1)
    enlarged = with_spare([toy], counts, 1)
    assert enlarged.tolist() == [1 + spare, 1 + spare]
    assert meets_goals(toy, enlarged - spare, goals, 1)


def test_replicas_lost_in_a_region_may_be_of_several_pools() -> None:
    place = [(0, 0, 0), (0, 0, 1), (0, 1, 0)]
    fleet = SimpleNamespace(model_region_gpu=place, minimum=np.zeros((1, 2, 2), np.int64))
    plan = SimpleNamespace(spare=SpareSettings(instances=2, by_pool=False))
    toy = cast(Study, SimpleNamespace(hardware=fleet, settings=SimpleNamespace(plan=plan)))
    lost = {tuple(loss.counts.ravel().tolist()) for loss in losses_of(toy)}
    assert lost == {(2, 0, 0, 0), (1, 1, 0, 0), (0, 2, 0, 0), (0, 0, 2, 0)}


def test_without_spare_asked_for_a_flat_fleet_stays_as_it_is(study: Study) -> None:
    assert with_spare_capacity([study], np.array([1, 0])).tolist() == [1, 0]


def test_no_more_is_added_than_there_are_gpus(study: Study) -> None:
    fleet = with_spare_capacity([wanting(study, SpareSettings(instances=100))], np.array([1, 1]))
    room = study.hardware.capacity_gpus.sum(axis=1) // study.fleet(fleet).pools[0].gpus_per_instance
    assert fleet.tolist() == room.tolist()


def test_regions_closed_to_each_other_help_nobody(study: Study) -> None:
    """What is asked of each, about 750 tokens/s, has to be carried there with two gone."""
    hardware = replace(study.hardware, latency_s=np.array([[0.0, np.inf], [np.inf, 0.0]]))
    closed = wanting(replace(study, hardware=hardware), WAYS["pool"])
    need = np.ceil(interactive_demand(closed).max(axis=0) / THETA)[0]
    assert with_spare_capacity([closed], np.array([1, 0])).tolist() == (need + 2).tolist()


def test_the_worst_loss_leaves_the_most_demand_without_capacity(study: Study) -> None:
    """Closed regions of 1 and 4 replicas: the loss of the single one hurts. Open ones are equal."""
    hardware = replace(study.hardware, latency_s=np.array([[0.0, np.inf], [np.inf, 0.0]]))
    closed = wanting(replace(study, hardware=hardware), WAYS["one"])
    losses = losses_of(closed)
    for counts, place in (((1, 4), 0), ((4, 1), 1)):
        fleet = np.array(counts).reshape(1, 1, 2, 1)
        worst_counts = losses[worst_loss(closed, fleet)].counts
        assert worst_counts.ravel().tolist() == [place == 0, place == 1]


def test_deferrable_tiers_may_miss_their_target_after_a_loss(study: Study) -> None:
    (tier,) = study.hardware.tiers
    batch = replace(tier, name="batch", deferrable=True)
    strict = replace(tier, name="strict", attainment=0.99)
    both = replace(study, hardware=replace(study.hardware, tiers=(tier, strict, batch)))
    survival = survival_of(both, {tier.name: 0.96, "strict": 0.97, "batch": 0.0})
    assert survival is not None
    assert (survival.share, survival.shortfall) == (0.97, pytest.approx(0.02))
    assert survival.attainment == {tier.name: 0.96, "strict": 0.97}
    assert survival_of(both, {"batch": 0.5}) is None
    assert interactive_targets(both) == {tier.name: tier.attainment, "strict": 0.99, "batch": 0.0}


@pytest.mark.parametrize("way", WAYS)
def test_more_spare_replicas_never_serve_less_after_a_loss(study: Study, way: str) -> None:
    """Of two static fleets, the one with more replicas survives at least as much."""
    toy = wanting(study, WAYS[way])
    runs = [
        run_policy(
            toy, policy_of("flat-before"), seed=1, progress=silent,
            shared=SharedInputs(static=lambda each=each: np.array([each, each])),
            options=ReplayOptions(detailed=False, spare=True),
        )
        for each in range(5)
    ]  # fmt: skip
    shares = [cast(float, run.survives) for run in runs]
    assert shares == sorted(shares) and shares[-1] >= 0.95
    # One replica serves all requests, so only a loss in every pool leaves too few.
    assert (shares[0] < 0.5) == (WAYS[way].by_pool and WAYS[way].instances > 0)
    lacking = [run.lacks_spare for run in runs]
    assert lacking == [pytest.approx(max(0.0, 0.95 - share)) for share in shares]
    assert [run.n_plus_1 for run in runs] == [lack == 0 for lack in lacking]


def test_a_static_fleet_after_a_loss_is_a_smaller_static_fleet(study: Study) -> None:
    def run(counts: list[int], options: ReplayOptions) -> PolicyRun:
        return run_policy(
            wanting(study, WAYS["one"]), policy_of("flat-before"), seed=1, progress=silent,
            shared=SharedInputs(static=lambda: np.array(counts)), options=options,
        )  # fmt: skip

    loss = losses_of(wanting(study, WAYS["one"]))[0]
    assert loss.counts.ravel().tolist() == [1, 0]
    lost, smaller = run([2, 1], replace(BRIEF, lost=loss)), run([1, 1], BRIEF)
    assert lost.summary.slo_attainment == smaller.summary.slo_attainment
    assert lost.summary.cost_usd == pytest.approx(smaller.summary.cost_usd)
