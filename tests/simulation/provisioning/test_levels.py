"""The two granularities on the same devices, and what they draw."""

from dataclasses import replace

import numpy as np
import pytest

from bench.provision.exact_placement import fewest_devices
from simulation.provisioning.algorithm1 import greedy_plan
from simulation.provisioning.blocks import merge_layers
from simulation.provisioning.bounds import (
    device_lower_bound,
    device_options,
    devices_filled_by,
    filled_devices,
    round_up_devices,
)
from simulation.provisioning.energy import PhasePower, energy_of_pass, fleet_watts
from simulation.provisioning.exact import exact_plan
from simulation.provisioning.frontier import frontiers, priced_frontier
from simulation.provisioning.interference import Demand
from simulation.provisioning.level import savings
from simulation.provisioning.levels import model_level, plan_level
from simulation.provisioning.placement import place_plan
from simulation.provisioning.problem import sojourns
from simulation.provisioning.replicas import plan_whole_replicas, under_load, watts_of
from simulation.provisioning.workload import phase_problem
from tests.simulation.provisioning.cases import by_hand, random_demand, random_problem
from tests.simulation.provisioning.test_workload import SHAPE, service, timing

DEVICE = 72e9


def test_an_impossible_limit_has_no_level():
    problem = phase_problem(service(slo_s=1e-4), timing)
    assert model_level(problem, DEVICE) is None
    assert plan_level("operator", problem, DEVICE) is None


def test_power_of_a_fleet_by_hand():
    """Loads 0.4 and 0.8 (see cases) of 2 and 3 W above a floor of 60 W, three devices of 50 W."""
    power = PhasePower(50.0, 60.0, np.array([2.0, 3.0])[:, None, None])
    ones = np.ones(2, np.int64)
    expected = 3 * 50 + 1.2 * 10 + 0.4 * 2 + 0.8 * 3
    assert fleet_watts(by_hand(), power, 3, ones, ones) == pytest.approx(expected)
    # One device cannot run more than all the time.
    assert fleet_watts(by_hand(), power, 1, ones, ones) == pytest.approx(50 + 10 + 0.8 + 2.4)


def test_energy_of_a_pass_by_hand():
    """Equation 9 with one replica of each: 50 W idle, and 60 - 50 + 2 (3) W above it."""
    power = PhasePower(50.0, 60.0, np.array([2.0, 3.0])[:, None, None])
    plan = exact_plan(by_hand())
    joules = energy_of_pass(by_hand(), power, plan)
    sojourn = [1 / 6, 0.2 / 0.84]
    assert joules == pytest.approx([50 * sojourn[0] + 12 * 0.1, 50 * 2 * sojourn[1] + 13 * 0.2])


def test_whole_replicas_of_equal_devices_draw_hardly_more_than_any():
    phase = phase_problem(service(requests_s=60.0), timing)
    plan = plan_whole_replicas(phase, DEVICE)
    drawn = watts_of(phase, plan)
    for b, p in np.ndindex(phase.replica_s.shape):
        if plan.devices % phase.problem.parallel[p]:
            continue
        assert plan.stages == 1
        other = replace(
            plan,
            batch=int(phase.problem.batches[b]),
            parallel=int(phase.problem.parallel[p]),
            replicas=plan.devices // int(phase.problem.parallel[p]),
        )
        fits = phase.replica_bytes[b, p] + phase.kv_bytes[p] / other.replicas <= DEVICE
        loaded = under_load(phase, other)
        if loaded is not None and loaded.latency_s <= phase.problem.slo_s and fits:
            assert watts_of(phase, other) * 1.02 >= drawn - 1e-9


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_runs_of_layers_are_the_model_cut_in_pieces(phase):
    limit = 1.0 if phase == "prefill" else 0.08
    uncut = phase_problem(service(phase, 40.0, limit), timing)
    cut = merge_layers(uncut)
    assert cut.problem.names[0] == "layers 1 to 4"
    assert cut.problem.latency_s.sum(axis=0) == pytest.approx(uncut.replica_s)
    for name in ("memory_bytes", "kv_bytes"):
        ours, theirs = getattr(cut.demand, name), getattr(uncut.demand, name)
        assert ours.sum(axis=0) == pytest.approx(theirs.sum(axis=0))
    for name in ("compute", "bandwidth"):
        work = (getattr(cut.demand, name) * cut.problem.latency_s).sum(axis=0)
        expected = (getattr(uncut.demand, name) * uncut.problem.latency_s).sum(axis=0)
        assert work == pytest.approx(expected)
    # A crossing is a scatter and a gather of what the last operator of a layer hands over.
    last = uncut.problem.names.index("down_projection")
    once = uncut.problem.transfer_s[last] / SHAPE.layers
    assert cut.problem.transfer_s[0] == pytest.approx(2 * once)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("level", ["operator", "module"])
def test_a_plan_needs_no_fewer_devices_than_proven_and_no_more_than_whole_replicas(phase, level):
    limit = 1.0 if phase == "prefill" else 0.08
    for rate in (5.0, 60.0):
        problem = phase_problem(service(phase, rate, limit), timing)
        replicas = model_level(problem, DEVICE)
        greedy, exact = (
            plan_level(level, problem, DEVICE, method=method, coarser=[replicas], proofs=True)
            for method in ("greedy", "exact")
        )
        assert 0 < greedy.least_devices <= exact.least_devices <= exact.devices
        assert exact.devices <= greedy.devices <= replicas.devices
        assert exact.least_devices <= exact.mean_devices <= greedy.mean_devices
        for fine in (greedy, exact):
            assert fine.latency_s <= limit
            assert savings(replicas, fine).gpus == pytest.approx(
                1 - fine.devices / replicas.devices
            )
            if fine.placement is not None:
                assert fine.placement.feasible and fine.placement.devices == fine.devices
                assert fine.placement.memory_bytes.max() <= DEVICE


def test_the_bound_on_devices_holds_for_the_optimum_of_small_cases():
    rng = np.random.default_rng(5)
    for seed in range(16):
        problem = random_problem(seed, operators=3, batches=2, parallel=1, replicas=3, dag=False)
        shape = problem.latency_s.shape
        demand = Demand(
            rng.uniform(0.1, 0.5, shape), rng.uniform(0, 1, shape), rng.uniform(0, 1, shape)
        )
        best = fewest_devices(problem, demand, 1.0)
        if best is None:
            continue
        bound = device_lower_bound(problem, demand, sojourns(problem), 1.0)
        options = device_options(problem, demand, sojourns(problem), 1.0, 99)
        program = exact_plan(problem, options, slot_price=0.0)
        assert bound <= best[1].devices
        assert program.feasible and bound <= program.bound <= best[1].devices


def test_no_placement_needs_fewer_devices_than_its_plan_fills():
    near = 0
    for seed in range(80):
        problem = random_problem(seed, operators=2 + seed % 3, parallel=2, dag=seed % 2 == 1)
        plan = greedy_plan(problem)
        if plan is None:
            continue
        demand = random_demand(problem, seed)
        least = round_up_devices(devices_filled_by(problem, demand, plan, 10.0))
        placed = place_plan(problem, demand, plan, 10.0).devices
        assert 1 <= least <= placed
        near += least == placed
        assert least >= round_up_devices(float(filled_devices(problem, demand, 10.0).min()))
    assert near >= 10


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("requests_s", [5.0, 80.0])
def test_choices_that_are_not_placed_would_not_have_been_chosen(phase, requests_s):
    """With proofs every choice is placed."""
    limit = 1.0 if phase == "prefill" else 0.08
    problem = phase_problem(service(phase, requests_s, limit), timing)
    replicas = model_level(problem, DEVICE)
    for level in ("module", "operator"):
        every = plan_level(level, problem, DEVICE, proofs=True)
        some = plan_level(level, problem, DEVICE)
        assert (some.devices, some.power_w) == (every.devices, pytest.approx(every.power_w))
        beside = plan_level(level, problem, DEVICE, coarser=[replicas])
        assert beside.devices == min(every.devices, replicas.devices)


def test_a_frontier_priced_in_slots_is_the_frontier_of_slots():
    problem = random_problem(4, operators=3, batches=3, parallel=2, replicas=6, dag=False)
    table = sojourns(problem)
    slots = problem.parallel[:, None] * np.arange(1, 7)
    price = np.broadcast_to(slots.astype(float), table.shape[1:])
    for v, option in enumerate(frontiers(problem)):
        again = priced_frontier(table[v], price)
        assert again.slots == pytest.approx(option.slots)
        assert again.sojourn_s == pytest.approx(option.sojourn_s)


def test_operators_stand_as_the_level_that_needs_least():
    problem = phase_problem(service("prefill", 40.0, 1.0), timing)
    replicas = model_level(problem, DEVICE)
    cheap = replace(plan_level("module", problem, DEVICE), devices=1, power_w=1.0)
    fine = plan_level("operator", problem, DEVICE, coarser=[replicas, cheap])
    assert fine.level == "operator" and fine.devices == 1
    assert fine.method == "groups of layers need the fewest GPUs"
    assert fine.layer_runs(problem).problem.names[0].startswith("layers")
