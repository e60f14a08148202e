"""Copies of layers in the simulator: what they speed up, what they take, what they do not help."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.performance.linear import LinearProfile
from simulation.performance.specs import Provenance
from simulation.provisioning.modules.scale_up import algorithm1
from simulation.provisioning.modules.speedup import runs
from simulation.provisioning.modules.study import (
    Deployment,
    Setting,
    module_problem,
    run,
    speed_of,
    study,
)
from tests.simulation.provisioning.test_workload import GPU

PROFILE = LinearProfile(
    model="m", gpu="test GPU", tp=1, alpha_s=0.02, beta_s=0.001, gamma_s=0.02, delta_s=0.0001,
    max_batch=64, max_batch_tokens=2048, kv_capacity_tokens=20_000,
    provenance=Provenance("assumed", "round numbers"),
)  # fmt: skip
SETTING = Setting(
    profile=PROFILE,
    gpu=GPU,
    gpus=4,
    gpus_per_instance=1,
    layers=40,
    layer_bytes=1e9,
    weight_bytes=42e9,
    kv_bytes_per_token=1e6,
    hidden_bytes=1e4,
    link_bytes_s=25e9,
    link_s=1e-6,
    isl=np.array([64], np.int32),
    osl=np.array([100], np.int32),
    tier=Tier("chat", e2e_s=15.0),
)
STATIC, ELASTIC = Deployment("static", 2), Deployment("elastic", 2, True, "source")


def test_copies_stand_on_idle_gpus_and_take_what_is_there():
    problem = module_problem(SETTING, ELASTIC, 8.0)
    # 72 GB of each of the two idle GPUs, one of them for each instance: 36 layers on either.
    assert problem.room.tolist() == [0, 36, 36]
    capped = module_problem(SETTING, replace(ELASTIC, replica_bytes=10e9), 8.0)
    assert capped.room.tolist() == [0, 2, 2]
    layer_s = (0.02 + 8 * 0.001) / 40
    assert problem.gamma == pytest.approx(2 * (1e-6 + 8e4 / 25e9) / layer_s)
    with pytest.raises(SimulationError, match="5 GPUs are needed and there are 4"):
        module_problem(SETTING, Deployment("many", 5), 1.0)


def test_a_speedup_of_the_source_is_less_when_weights_are_read_by_every_copy():
    problem = module_problem(SETTING, ELASTIC, 16.0)
    plan = algorithm1(problem)
    copies = 1 + plan.replicated.sum(axis=1)
    source = speed_of(SETTING, problem, plan, 16.0, "source")
    assert source == pytest.approx(plan.speedup)
    # By hand: a layer of p copies takes (alpha + beta b / p) / n.
    crossing = problem.gamma * (0.02 + 0.016) / 40 * runs(plan.replicated)
    split_s = ((0.02 + 0.001 * 16 / copies) / 40).sum() + crossing
    split = speed_of(SETTING, problem, plan, 16.0, "split")
    assert split == pytest.approx(0.036 / split_s)
    assert 1 <= split < source
    with pytest.raises(SimulationError, match="no reading"):
        speed_of(SETTING, problem, plan, 16.0, "guess")


def test_the_simulated_instance_is_faster_by_s_and_pays_for_the_copies():
    static, elastic = run(SETTING, STATIC, 1.0), run(SETTING, ELASTIC, 1.0)
    assert static.speedup == 1 and static.replicated_layers == 0 and static.acting.seconds == 0
    assert elastic.speedup > 2
    # At a trickle nothing queues: the time to the last token falls by S.
    assert elastic.latency_s == pytest.approx(static.latency_s / elastic.speedup, rel=0.05)
    assert (static.gpus, elastic.gpus) == (2, 4)
    extra = elastic.memory_bytes - static.memory_bytes
    assert extra == pytest.approx(elastic.replicated_layers * 1e9, rel=0.02)
    assert elastic.acting.seconds > 0.3
    assert static.attainment == 1


def test_what_does_not_fit_is_counted_and_copies_do_not_help_it():
    tight = replace(SETTING, profile=replace(PROFILE, kv_capacity_tokens=700))
    found = study(tight, (STATIC, Deployment("copies", 2, True, "split", 4e9)), (1.0, 60.0))
    by_name = {(one.deployment, one.rate): one for one in found}
    assert by_name["static", 1.0].oom_share == 0
    assert by_name["static", 60.0].oom_share > 0.05
    assert by_name["copies", 60.0].oom_share > 0.05
    assert by_name["static", 60.0].tokens_s > by_name["static", 1.0].tokens_s


def test_moved_kv_caches_make_room_and_cost_crossings():
    tight = replace(SETTING, profile=replace(PROFILE, kv_capacity_tokens=700))
    moved = run(tight, Deployment("moved", 2, True, moves_kv=True), 60.0)
    still = run(tight, STATIC, 60.0)
    assert still.oom_share > 0.05
    assert moved.oom_share == 0  # 72 GB more of room for each instance of 0.7 GB
    assert moved.speedup < 1 and moved.tokens_s > still.tokens_s
    assert moved.replicated_layers == 0 and moved.gpus == 4
    assert moved.acting.seconds > 0.2


def test_a_full_house_has_no_room_for_copies():
    full = run(SETTING, Deployment("four", 4, True), 5.0)
    assert (full.speedup, full.replicated_layers, full.gpus) == (1.0, 0, 4)
