"""Policies that change roles, by their laws and on replays."""

from functools import partial

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.fleet import KvLink, Tier
from simulation.performance.profile import iteration_s
from simulation.policies.static import Static
from simulation.policies.token_velocity import TokenVelocity, best_split
from simulation.policy_check import check
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.policies.observations import seen

LENGTHS = [(100.0, 20.0)] * 2
TTFT_S, TBT_S = 2.0, 0.25
SWITCH = {"takes_over": False}
TAKE_OVER = {"switches": False}


def made(**how):
    return TokenVelocity(lengths=LENGTHS, ttft_s=TTFT_S, tbt_s=TBT_S, **how)


def apart(initial=(2, 2), maximum=8, prof=None, **how):
    prof = prof or profile(kv=8192, budget=256, max_batch=32)
    return fleet(
        pool(prof, role="prefill", link=KvLink(1.0, 1e9), initial=initial[0], maximum=maximum,
             minimum=1),
        pool(prof, role="decode", initial=initial[1], maximum=maximum, minimum=1),
        tiers=[Tier("t", ttft_s=TTFT_S, tbt_s=TBT_S)],
        **how,
    )  # fmt: skip


@pytest.mark.parametrize("how", [SWITCH, TAKE_OVER, {"scales": True}])
def test_it_obeys_the_protocol(how):
    def policy():
        return partial(TokenVelocity, ttft_s=TTFT_S, tbt_s=TBT_S, **how)

    for name, pools in (("one", 1), ("two", 2), ("split", 2)):
        check(lambda n=pools: policy()(lengths=LENGTHS[:1] * n), fleets=(name,))


def test_the_split_has_the_least_pressure():
    rng = np.random.default_rng(0)
    for _ in range(200):
        needs, total = tuple(rng.uniform(0, 9, 2)), int(rng.integers(2, 30))
        split = best_split(needs, total)
        assert sum(split) == total and min(split) >= 1
        least = min(max(needs[0] / n, needs[1] / (total - n)) for n in range(1, total))
        assert max(needs[0] / split[0], needs[1] / split[1]) == pytest.approx(least)


def test_it_moves_replicas_to_the_role_that_is_short():
    policy = made(**SWITCH)
    policy.reset(apart((4, 4)))
    velocity = policy.computed_parameters()[0].values[0]
    calm = policy.decide(seen(5.0, [4, 4], input_tps=[velocity, 0.0]))
    assert not calm.moves.any()
    busy = policy.decide(seen(10.0, [4, 4], input_tps=[6 * velocity, 0.0]))
    assert busy.moves.tolist() == [[0, 0], [3, 0]]
    assert busy.targets.tolist() == [4, 4]
    back = policy.decide(seen(15.0, [7, 1], input_tps=[velocity, 0.0], batch=[0.0, 1e3]))
    assert back.moves[0, 1] == 6


def test_without_a_role_of_its_own_nothing_changes():
    policy = TokenVelocity(lengths=LENGTHS[:1], ttft_s=TTFT_S, tbt_s=TBT_S)
    policy.reset(fleet(pool(initial=3)))
    actions = policy.decide(seen(5.0, [3], input_tps=1e9))
    assert actions.targets.tolist() == [3]
    assert not actions.moves.any() and not actions.prompt_chunk.any()


def test_the_chunk_keeps_an_iteration_within_the_tbt_limit():
    policy, served = made(**TAKE_OVER), apart()
    policy.reset(served)
    prof, context = served.pools[1].profile, 100.0 + 10.0
    chunks = []
    for batch in range(0, 32, 4):
        actions = policy.decide(seen(5.0, [2, 2], batch=[0.0, float(batch)]))
        chunk = int(actions.prompt_chunk[1])
        chunks.append(chunk)
        assert actions.prompt_chunk[0] == 0
        assert actions.overflow_s == 0.5 * TTFT_S
        if chunk:
            assert iteration_s(prof, batch, batch * context, chunk, chunk * 50.0) <= TBT_S
    assert chunks == sorted(chunks, reverse=True)
    assert chunks[0] > chunks[-1]


def bursts(seed=0, seconds=900):
    """Steady requests with bursts of prompts in turn with bursts of answers."""
    rng = np.random.default_rng(seed)
    at = np.arange(seconds)
    kinds = (
        (2.0 + 0 * at, 100, 20),
        (np.where(at % 300 < 60, 10.0, 0.0), 150, 2),
        (np.where((at % 300 >= 150) & (at % 300 < 210), 5.0, 0.0), 8, 80),
    )
    rows = [(np.repeat(at, rng.poisson(rate)) + 0.0, isl, osl) for rate, isl, osl in kinds]
    arrival, isl, osl = (np.concatenate([np.broadcast_to(row[c], len(row[0])) for row in rows])
                         for c in range(3))  # fmt: skip
    order = np.argsort(arrival, kind="stable")
    return trace(arrival[order], isl[order], osl[order])


def attainment(result):
    log = result.requests
    within = (log.ttft_s <= TTFT_S) & (np.nan_to_num(log.tbt_s) <= TBT_S)
    return float(((log.outcome == 0) & within).mean())


def test_in_bursts_it_attains_more_than_the_roles_it_began_with():
    requests, prof = bursts(), profile(delta=1 / 512, kv=8192, budget=256, max_batch=32)
    fixed = attainment(simulate(requests, apart((3, 3), prof=prof), Static([3, 3]), duration_s=900))
    gains = {}
    for name, how in (("switch", SWITCH), ("take over", TAKE_OVER)):
        result = simulate(requests, apart((3, 3), prof=prof), made(**how), duration_s=900.0)
        gains[name] = attainment(result) - fixed
        spent = sum(getattr(result.totals, kind).sum()
                    for kind in ("starting_s", "idle_s", "prefill_s", "decode_s"))  # fmt: skip
        assert spent == pytest.approx(6 * 900.0)
        assert (result.totals.switches.sum() > 0) == (name == "switch")
        assert (result.totals.diverted.sum() > 0) == (name == "take over")
    assert min(gains.values()) > 0.1


def test_scaling_follows_both_velocities_and_ends_replicas_later():
    policy = made(scales=True, target=1.0, keep_s=60.0)
    policy.reset(apart((2, 2)))
    prefill = policy.computed_parameters()[0].values
    more = policy.decide(seen(5.0, [2, 2], input_tps=[5 * prefill[0], 0.0]))
    assert more.targets.tolist() == [5, 2]
    kept = policy.decide(seen(60.0, [5, 2], input_tps=[0.0, 0.0]))
    assert kept.targets.tolist() == [5, 2]
    fewer = policy.decide(seen(130.0, [5, 2], input_tps=[0.0, 0.0]))
    assert fewer.targets.tolist() == [1, 1]
