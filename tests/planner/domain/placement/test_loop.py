"""A policy whose instances find a place in the network before they start."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from planner.domain.kinds import simulate
from planner.domain.outcome import Inputs
from planner.domain.placement.placing_policy import PlacingPolicy
from planner.domain.progress import silent
from planner.domain.traffic.sources import StoredTrace
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.topology import network_of
from planner.optimizer.placement import measure_units
from tests.planner.domain import builders as make
from tests.planner.domain.placement.test_placement import EAST, MIXED_REGION, disaggregated
from tests.simulation.policies.observations import seen
from tests.simulation.scripted_policies import Asking


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    return make.demand_file(tmp_path_factory.mktemp("steady"), {"a": [200.0] * 40})


def looking(*asked: list[int], first: tuple[int, int] = (6, 6), **rules: Any) -> PlacingPolicy:
    scenario = disaggregated(placement={"services": [{"model": "m", **rules}]})
    hardware = build_hardware(scenario)
    network = network_of(scenario, hardware)
    assert network is not None and hardware.today is not None
    policy = PlacingPolicy(Asking(list(first), *asked), network, hardware)
    fleet = hardware.fleet(hardware.today)
    places = zip(fleet.pools, first, strict=True)
    policy.reset(replace(fleet, pools=tuple(replace(pool, initial=n) for pool, n in places)))
    return policy


def lawful(policy: PlacingPolicy) -> None:
    """No node holds more than it has, and no unit is split across subgroups."""
    placed, problem = policy._placement, policy._problem
    assert (placed.used_gpus(len(problem.topology)) <= problem.topology.gpus).all()
    assert not measure_units(problem, placed).split.any()


def test_what_fits_is_placed_and_what_does_not_is_not_started() -> None:
    policy = looking([8, 8], [200, 200], [8, 8])
    answer = policy.decide(seen(60.0, [6, 6]))
    assert answer.targets.tolist() == [8, 8]
    lawful(policy)
    # 96 G and 96 H: 48 prefill or 24 decode instances, in pairs and each pair in one subgroup.
    most = policy.decide(seen(120.0, [8, 8])).targets
    assert (most >= 8).all() and most[0] <= 48 and most[1] <= 24
    lawful(policy)
    in_force = {parameter.what: parameter.values for parameter in policy.computed_parameters()}
    refused = in_force["replicas without a place, mean over decisions"]
    assert refused.tolist() == ((200 - most) / 2).tolist()
    # It shrinks; what still drains keeps its place, then the next may have it.
    ready = most.copy()
    policy.decide(seen(180.0, [8, 8], draining=ready - 8))
    assert len(np.unique(policy._placement.unit)) == most.min()
    policy.decide(seen(240.0, [8, 8]))
    assert len(np.unique(policy._placement.unit)) == 8


@pytest.mark.parametrize(("affinity", "share"), [("s1", 1.0), ("s2", 0.8), ("none", 0.8)])
def test_caches_have_the_bandwidth_that_the_switches_leave(affinity: str, share: float) -> None:
    policy = looking([2, 2], first=(1, 1), affinity=affinity)
    answer = policy.decide(seen(60.0, [1, 1]))
    assert answer.link_share is not None
    assert answer.link_share.tolist() == pytest.approx([share, share])
    (shares,) = (
        parameter.values
        for parameter in policy.computed_parameters()
        if parameter.what.startswith("mean share of KV")
    )
    assert shares[0] == pytest.approx(share) and np.isnan(shares[1])  # of those that send


def test_a_network_that_nobody_states_or_that_carries_nothing_has_no_part() -> None:
    bare = {key: value for key, value in EAST.items() if key != "topology"}
    for scenario in (disaggregated(regions=[bare]), make.scenario(regions=[MIXED_REGION])):
        assert network_of(scenario, build_hardware(scenario)) is None


def test_a_replay_is_slower_across_switches(stored: StoredTrace) -> None:
    """Caches of 60 ms and more on links of 0.5 GB/s: at half of it TTFT waits for links longer."""
    mean_ms = {}
    for across in (1.0, 0.25):
        scenario = disaggregated(
            policies=["today"], placement={"across_s1": across, "across_s2": across}
        )
        options = simulate.Options(policy="today")
        document = simulate.run(Inputs(scenario, {"t": stored}), options, silent).document
        mean_ms[across] = document["policies"]["today"]["e2e_ms"]["mean"]
    assert mean_ms[0.25] > mean_ms[1.0]
