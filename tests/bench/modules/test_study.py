"""Elastic instances in the simulator: what copies speed up, what moved caches make room for, what
they take, beside whole instances."""

from dataclasses import replace

import numpy as np
import pytest

from bench.modules.study import Deployment, Setting, fleet_of, layout_of, run
from simulation.errors import SimulationError
from simulation.fleet import Tier
from tests.simulation.policies.test_modules import PROFILE as PROFILE_OF_TESTS
from tests.simulation.provisioning.test_workload import GPU

PROFILE = replace(PROFILE_OF_TESTS, kv_capacity_tokens=20_000)
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
STATIC = Deployment("static", 2)
ELASTIC = Deployment("elastic", 2, True, "source")
# Room for 700 tokens beside the weights of 71 GB at home.
TIGHT = replace(
    SETTING,
    profile=replace(PROFILE, kv_capacity_tokens=700),
    weight_bytes=0.9 * GPU.memory_bytes - 700e6,
    layer_bytes=1.7e9,
)


def test_copies_stand_on_idle_gpus_and_take_what_is_there():
    layout = layout_of(SETTING, ELASTIC)
    # 72 GB of each of the two idle GPUs, half of them for each instance; 2 GB at home do not move.
    assert layout.room_bytes.tolist() == pytest.approx([70e9, 36e9, 36e9])
    capped = layout_of(SETTING, replace(ELASTIC, replica_bytes=10e9))
    assert capped.room_bytes.tolist() == pytest.approx([70e9, 2.5e9, 2.5e9])
    assert layout.tokens(layout.start) == pytest.approx(30e9 / 1e6)
    with pytest.raises(SimulationError, match="5 GPUs are needed and there are 4"):
        layout_of(SETTING, Deployment("many", 5))


def test_moved_caches_make_room_up_to_what_idle_gpus_hold():
    layout = layout_of(TIGHT, replace(ELASTIC, moves_kv=True))
    assert layout.tokens(layout.start) == pytest.approx(700)
    most = layout.max_kv_tokens()
    assert 20_000 < most <= (700e6 + 72e9) / 1e6
    fleet, _ = fleet_of(TIGHT, replace(ELASTIC, moves_kv=True))
    assert [pool.profile.kv_capacity_tokens for pool in fleet.pools] == [int(most)] * 2
    assert layout_of(TIGHT, ELASTIC).max_kv_tokens() == pytest.approx(700)  # it may not move them


def test_an_elastic_instance_becomes_faster_during_the_run():
    static, elastic = run(SETTING, STATIC, 1.0), run(SETTING, ELASTIC, 1.0)
    assert static.operations == 0 and static.acting_s == 0
    # Two instances, one operation each or a few, and then nothing queues: about S times as fast.
    assert 2 <= elastic.operations <= 10
    assert elastic.acting_s > 0.3
    assert elastic.latency_s < 0.6 * static.latency_s
    assert static.gpus == pytest.approx(2, rel=0.01)
    assert elastic.gpus == pytest.approx(4, rel=0.05)
    assert 2 < elastic.gpu_parts <= elastic.gpus
    assert elastic.memory_bytes > static.memory_bytes + 20e9
    assert static.attainment == 1


def test_moved_caches_end_it():
    still = run(TIGHT, STATIC, 60.0)
    moved = run(TIGHT, Deployment("moved", 2, True, moves_kv=True), 60.0)
    assert moved.oom_share < 0.2 * still.oom_share
    assert moved.tokens_s > still.tokens_s
    assert moved.operations > 0
