"""Pools for some tiers: silos and mixed pools, on fleets small enough to work out by hand."""

import numpy as np
import pytest

from simulation.engine import entry_points
from simulation.engine.allocation import allocate, services
from simulation.engine.control_loop import Observer
from simulation.engine.holding import without_decisions
from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import KvLink, Tier
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.schedule_follower import ScheduleFollower
from simulation.policies.static import Static
from tests.simulation.builders import SLOW_ALONE as SLOW
from tests.simulation.builders import fleet, pool, profile, trace

FAST, BATCH = Tier("fast"), Tier("batch")
TIERS = ("fast", "batch")


def tiered(*pools, **how):
    return fleet(*pools, tiers=(FAST, BATCH), **how)


def test_tiers_served_by_the_same_pools_are_one_service():
    chiron = tiered(
        pool(SLOW, tiers=("fast",)),
        pool(SLOW),
        pool(SLOW, tiers=("batch",)),
        pool(SLOW, model="x"),
    )
    by_service = {(state.model, state.tiers): pools for state, pools in services(chiron).items()}
    assert by_service == {
        ("m", ("fast",)): (0, 1),
        ("m", ("batch",)): (1, 2),
        ("x", ("fast", "batch")): (3,),
    }


def test_instance_of_a_mixed_pool_takes_what_waited_for_either_tier():
    mixed = tiered(pool(SLOW, tiers=("fast",)), pool(SLOW, startup_s=0.0))
    policy = ScheduleFollower(FixedSchedule([0.0, 60.0], [[0, 0], [0, 1]]))
    result = simulate(
        trace([0.0, 1.0], 10, 5, tier=[1, 0], tiers=TIERS), mixed, policy, duration_s=120.0
    )
    # Services in order of their pools: the fast tier's first.
    assert result.requests.last_token_s.tolist() == [70.0, 65.0]


def test_completion_in_a_mixed_pool_lets_in_deferred_requests_of_its_tier():
    late = Tier("batch", deferrable=True)
    mixed = fleet(pool(SLOW, tiers=("fast",)), pool(SLOW), tiers=(FAST, late))
    result = simulate(
        trace([0.0, 0.0, 0.0], 10, [1, 1, 3], tier=1, tiers=TIERS),
        mixed,
        Static([1, 1]),
        duration_s=120.0,
    )
    # Two at the control instant, the third when the first is done; the fast silo stays empty.
    assert result.requests.pool.tolist() == [1, 1, 1]
    assert result.requests.last_token_s.tolist() == [61.0, 62.0, 65.0]


def test_tier_without_a_pool_is_rejected_with_its_reason():
    only = tiered(pool(SLOW, tiers=("fast",)))
    result = simulate(trace([0.0, 0.0], 10, 1, tier=[0, 1], tiers=TIERS), only, Static([1]))
    assert result.requests.outcome.tolist() == [0, 1]
    assert result.reject_reasons == {"no pool of the model serves the tier": 1}


def test_handed_over_requests_stay_with_pools_of_their_tier():
    link = KvLink(1.0, 100.0)
    pools = [pool(SLOW, role="prefill", link=link)]
    pools += [pool(SLOW, role="decode", tiers=(tier,)) for tier in TIERS]
    result = simulate(
        trace([0.0, 0.0], 10, 3, tier=[1, 0], tiers=TIERS), tiered(*pools), Static([1, 1, 1])
    )
    assert result.requests.pool.tolist() == [2, 1]
    # First token at 1 s and 2 s, a tenth of a second on the link, two more tokens.
    np.testing.assert_allclose(result.requests.last_token_s, [3.1, 4.1])


def test_pools_name_tiers_of_the_fleet():
    with pytest.raises(SimulationError, match="tiers names some of fast, batch, not gold"):
        tiered(pool(SLOW, tiers=("gold",)))


def test_prefill_pools_need_decode_pools_for_every_tier_they_take():
    with pytest.raises(SimulationError, match="it takes tier batch, but no decode pool"):
        tiered(
            pool(SLOW, role="prefill", link=KvLink(1.0, 1.0)),
            pool(SLOW, role="decode", tiers=("fast",)),
        )


def test_signals_since_the_last_decision_are_exact_in_the_middle_of_runs():
    """A request of 10 prompt and 100 output tokens, one token a second from 1 s on."""
    single = fleet(pool(profile(alpha=1.0, beta=0.0, gamma=1.0, delta=0.0, kv=1000, budget=10)))
    state = allocate(trace([0.0], 10, 100), single, 120.0, 60.0)
    policy = Static([1])
    policy.wants_signals = True
    observe = Observer(state, policy)
    entry_points.place(state.handle, np.array([1]))
    entry_points.advance(state.handle, 30.5, *without_decisions(state))
    seen = observe(30.5).signals
    assert (seen.busy, seen.batch, seen.ttft_s, seen.late_first) == (1.0, 1.0, 1.0, 0.0)
    assert seen.sm_activity == 4.0 / 30.5  # 40 tokens at ten a second
    assert (seen.prefill_tps, seen.decode_tps) == (10 / 30.5, 30 / 30.5)
    assert np.isnan([seen.tbt_s, seen.late_done, seen.hit_rate]).all()
    assert (seen.evicted_tps, seen.preemptions, seen.failed) == (0, 0, 0)
    entry_points.advance(state.handle, 110.0, *without_decisions(state))
    seen = observe(110.0).signals
    assert (seen.prefill_tps, seen.decode_tps) == (0, 70 / 79.5)
    assert (seen.busy, seen.tbt_s, seen.late_done) == (69.5 / 79.5, 1.0, 0.0)
    assert np.isnan([seen.ttft_s, seen.late_first]).all()
    assert state.series[:, 0].sum(axis=1)[[7, 8, 9]].tolist() == [100.0, 100.0, 10.0]
