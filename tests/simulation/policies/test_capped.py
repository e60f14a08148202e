"""Growth within the GPUs that pools share."""

import numpy as np

from simulation.fleet import KvLink
from simulation.policies.flat import Flat
from simulation.policies.wrappers.capped import WithinCapacity
from simulation.starting import StartUp
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observed import seen


def granted(wanted, ready, groups, *pools, **more):
    policy = WithinCapacity(Flat(wanted), groups)
    policy.reset(fleet(*pools))
    return policy.decide(seen(60.0, ready, **more)).targets.tolist()


def test_what_is_up_stays_and_the_last_pool_is_refused_first():
    two = [pool(), pool()]
    assert granted([4, 4], [2, 2], [([0, 1], 8)], *two) == [4, 4]
    assert granted([4, 4], [2, 2], [([0, 1], 6)], *two) == [4, 2]
    assert granted([4, 4], [2, 2], [([0, 1], 5)], *two) == [3, 2]
    assert granted([4, 1], [2, 4], [([0, 1], 6)], *two) == [2, 1]  # it may drain first
    assert granted([4, 1], [2, 1], [([0, 1], 5)], *two, draining=[0, 1]) == [3, 1]


def test_what_is_lent_holds_its_gpus():
    two = [pool(model="a"), pool(model="b")]
    # Two of pool 0 are lent: pool 1 finds one GPU free, pool 0 takes its own back.
    assert granted([2, 4], [2, 2], [([0, 1], 7)], *two, spare=[2, 0]) == [2, 3]
    assert granted([4, 4], [2, 2], [([0, 1], 7)], *two, spare=[2, 0]) == [4, 3]
    assert granted([5, 2], [2, 2], [([0, 1], 6)], *two, spare=[2, 0]) == [4, 2]
    assert granted([2, 4], [2, 2], [([0, 1], 6)], *two, spare=[2, 0]) == [2, 2]


def test_what_another_model_lent_needs_no_gpus_where_starts_may_take_it():
    swaps = [pool(model="a", start_up=StartUp(other_model_s=60.0)) for _ in range(2)]
    swaps[1] = pool(model="b", start_up=StartUp(other_model_s=60.0))
    assert granted([2, 4], [2, 2], [([0, 1], 6)], *swaps, spare=[2, 0]) == [2, 4]
    assert granted([3, 4], [2, 2], [([0, 1], 6)], *swaps, spare=[2, 0]) == [3, 3]
    same = [pool(model="a"), pool(model="a")]  # two pools of one model
    assert granted([2, 4], [2, 2], [([0, 1], 6)], *same, spare=[2, 0]) == [2, 4]


def test_what_drains_comes_back_without_more_gpus():
    two = [pool(), pool()]
    assert granted([4, 2], [2, 2], [([0, 1], 6)], *two, draining=[2, 0]) == [4, 2]
    assert granted([5, 2], [2, 2], [([0, 1], 6)], *two, draining=[2, 0]) == [4, 2]


def split():
    return [pool(role="prefill", link=KvLink(1.0, 1e9)), pool(role="decode")]


def test_prefill_does_not_grow_without_decode():
    # Decode has GPUs for half of what it wants: prefill gets half as well, rounded up.
    assert granted([6, 8], [2, 4], [([0], 99), ([1], 6)], *split()) == [4, 6]
    assert granted([3, 8], [2, 4], [([0], 99), ([1], 6)], *split()) == [3, 6]
    assert granted([6, 8], [2, 4], [([0], 99), ([1], 4)], *split()) == [2, 4]


def test_a_role_that_is_restored_alone_needs_no_other():
    assert granted([4, 4], [2, 4], [([0], 99), ([1], 4)], *split()) == [4, 4]


def test_signals_are_asked_for_where_the_policy_does():
    assert not WithinCapacity(Flat([1]), []).wants_signals
    asks = Flat([1])
    asks.wants_signals = True
    assert WithinCapacity(asks, []).wants_signals
    assert np.array_equal(WithinCapacity(asks, []).reset(fleet(pool())), [1])
