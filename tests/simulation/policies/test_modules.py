"""Elastic instances: what the policy copies, moves and brings home, by hand and in the engine."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.fleet import Fleet, Pool, Region, Tier
from simulation.modules.layout import Layout
from simulation.modules.parts import COORDINATE_S, acting_cost
from simulation.performance.linear import LinearProfile
from simulation.performance.specs import Provenance
from simulation.policies.modules import ModuleScaling
from simulation.policy import Observation
from tests.simulation.policies import observations
from tests.simulation.provisioning.test_workload import GPU

PROFILE = LinearProfile(
    model="m", gpu="test GPU", tp=1, alpha_s=0.02, beta_s=0.001, gamma_s=0.02, delta_s=0.0001,
    max_batch=64, max_batch_tokens=2048, kv_capacity_tokens=100_000,
    provenance=Provenance("assumed", "round numbers"),
)  # fmt: skip
# Ten layers of 1 GB at home in 12 GB: 2 GB for KV caches of 100 kB a token and layer, so 2,000
# tokens. 8 GB of an idle device.
LAYOUT = Layout(
    home=np.zeros(10, np.int64), room_bytes=np.array([12e9, 8e9]), layer_bytes=1e9,
    kv_layer_token_bytes=1e5, hidden_bytes=1e4, link_bytes_s=25e9, link_s=1e-6, isl=60.0, osl=40.0,
)  # fmt: skip


def fleet(count: int = 1, **changes: object) -> Fleet:
    pool = Pool("m", "", PROFILE, GPU, 1, 1, 1, 0.0, 0.0, **changes)
    regions = (Region("", 0.0, 1.0),)
    return Fleet((Tier("chat", e2e_s=9.0),), regions, (pool,) * count, np.zeros((1, 1)))


def seen(time_s: float, batch: float, waiting: int = 0, preempted: int = 0) -> Observation:
    return observations.seen(
        time_s, 1, utilisation=1.0, batch=batch, waiting=waiting, preemptions=preempted
    )


def test_tokens_that_fit_by_hand():
    start = LAYOUT.start
    assert LAYOUT.tokens(start) == pytest.approx(2000)
    # Caches of 8 layers beside: 2 at home in 2 GB (10,000), 8 in 8 GB (10,000).
    kv_home = np.r_[np.zeros(2, np.int64), np.ones(8, np.int64)]
    assert LAYOUT.tokens(replace(start, kv_home=kv_home)) == pytest.approx(10_000)


@pytest.mark.parametrize("reading", ["source", "split"])
def test_speeds_by_hand(reading):
    layout = replace(LAYOUT, reading=reading)
    state = layout.start
    assert layout.relative_speed(state, PROFILE, 16.0) == pytest.approx(1.0)
    copies = state.replicated.copy()
    copies[:8, 1] = True
    pass_s, crossing = 0.036, 2 * (1e-6 + 16e4 / 25e9)
    layer = 0.5 * 0.0036 if reading == "source" else 0.0028
    expected = pass_s / (8 * layer + 2 * 0.0036 + crossing)
    copied = replace(state, replicated=copies)
    assert layout.relative_speed(copied, PROFILE, 16.0) == pytest.approx(expected)
    moved = replace(state, kv_home=np.r_[np.zeros(7, np.int64), np.ones(3, np.int64)])
    assert layout.relative_speed(moved, PROFILE, 16.0) == pytest.approx(
        pass_s / (pass_s + 3 * crossing)
    )


def test_copies_are_made_at_low_load_and_serve_after_what_they_cost():
    policy = ModuleScaling([LAYOUT])
    policy.reset(fleet())
    first = policy.decide(seen(5.0, 8.0))
    assert [event.kind for event in policy.events] == ["copy"]
    copied = policy.events[0].modules
    assert 0 < copied <= 8
    seconds = acting_cost("replicate", copied * 1e9, 25e9).seconds + COORDINATE_S
    assert policy.events[0].until_s == pytest.approx(5.0 + seconds)
    # Not yet in force, and instances on its devices have 5% more latency meanwhile.
    assert first.speed[0] == pytest.approx(1 / (1 + 0.05 * seconds / 5.0))
    then = policy.decide(seen(10.0, 8.0))
    assert then.speed[0] > 1.0
    assert len(policy.events) == 1  # nothing new to do


def test_pressure_moves_caches_and_gives_up_copies_and_calm_brings_them_home():
    policy = ModuleScaling([LAYOUT])
    policy.reset(fleet())
    policy.decide(seen(5.0, 8.0))
    before = policy.decide(seen(10.0, 8.0))
    assert before.kv_share[0] == pytest.approx(2000 / 100_000)
    assert before.max_batch[0] == 20  # 2,000 tokens over 60 in and 40 out
    policy.decide(seen(15.0, 20.0, waiting=30))
    assert policy.events[-1].kind == "reduce"
    after = policy.decide(seen(25.0, 20.0, waiting=30))
    assert after.kv_share[0] > before.kv_share[0]
    assert after.max_batch[0] >= 50
    assert after.speed[0] < before.speed[0]
    for step in range(4):
        calm = policy.decide(seen(30.0 + 5 * step, 2.0))
    assert "home" in [event.kind for event in policy.events]
    assert calm.kv_share[0] <= after.kv_share[0]


def two_pools(use: float, busy: float, price: float = 2.0) -> tuple[ModuleScaling, Observation]:
    """An elastic pool whose modules may use the KV memory of a pool that serves others."""
    layout = replace(LAYOUT, hosts=(-1, 1), owner_instances=(0, 1))
    policy = ModuleScaling([layout, None])
    pool = Pool("m", "", PROFILE, GPU, 1, 1, 1, 0.0, price)
    there = replace(fleet(2), pools=(pool, pool))
    assert policy.reset(there).tolist() == [1, 1]
    alone, ones, two = seen(5.0, 8.0), np.ones(2), np.ones(2, np.int64)
    assert alone.signals is not None
    signals = replace(
        alone.signals, busy=np.array([1.0, busy]), batch=np.array([8.0, 8.0]), late_first=0 * ones,
        late_done=0 * ones, preemptions=0 * two,
    )  # fmt: skip
    return policy, replace(
        alone, ready=two, waiting=0 * two, utilisation=np.array([0.0, use]), signals=signals
    )


def test_modules_use_idle_memory_of_gpus_that_serve_others_at_what_it_displaces():
    policy, idle = two_pools(use=0.1, busy=0.0)
    first = policy.decide(idle)
    assert [event.kind for event in policy.events] == ["copy"]
    # The neighbour has the disturbance, and no GPU is held for modules.
    assert first.speed[1] == pytest.approx(first.speed[0]) and first.speed[1] < 1
    assert first.targets.tolist() == [1, 1]
    then = policy.decide(replace(idle, time_s=10.0))
    held = policy.events[0].copied * 1e9 / 8e9
    assert then.kv_share[1] == pytest.approx(1 - held)
    assert then.speed[0] > 1 > then.speed[1]
    # The neighbour needs its memory: the copies go.
    policy.decide(replace(idle, time_s=15.0, utilisation=np.array([0.0, 0.8])))
    assert policy.events[-1].kind == "reduce" and policy.events[-1].given_up > 0
    full, seen_full = two_pools(use=0.9, busy=0.9)
    full.decide(seen_full)
    assert full.events == []


def test_idle_gpus_are_only_held_for_copies_that_beat_a_replica_per_dollar():
    dear, cheap = (
        replace(fleet(2).pools[1], initial=0, minimum=0, tiers=(), usd_per_gpu_hour=price)
        for price in (2.0, 0.01)
    )
    for lending, copied in ((dear, False), (cheap, True)):
        policy = ModuleScaling([replace(LAYOUT, hosts=(-1, 1), owner_instances=(0, 1)), None])
        own = replace(fleet().pools[0], usd_per_gpu_hour=2.0)
        policy.reset(replace(fleet(2), pools=(own, lending)))
        _, observed = two_pools(use=0.0, busy=0.0)
        policy.decide(replace(observed, ready=np.array([1, 0])))
        assert bool(policy.events) == copied


def test_what_may_not_be_done_is_not():
    for layout in (replace(LAYOUT, copies=False, moves=False),):
        policy = ModuleScaling([layout])
        policy.reset(fleet())
        for step in range(6):
            policy.decide(seen(5.0 * step, 20.0, waiting=50, preempted=3))
        assert policy.events == []
