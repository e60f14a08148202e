"""Fleets cut by tier, and Chiron's three backpressures by hand."""

import pytest

from simulation.errors import SimulationError
from simulation.fleet import KvLink, Tier
from simulation.policies.chiron import Chiron
from simulation.policies.parts.tier_pools import (
    BATCH,
    INTERACTIVE,
    MIXED,
    chiron_fleet,
    pool_kind,
    siloed_fleet,
)
from tests.simulation.builders import fleet, pool, profile
from tests.simulation.policies.observations import seen

CHAT = Tier("chat", ttft_s=1.0, tbt_s=0.1)
NIGHT = Tier("night", e2e_s=3600.0, deferrable=True)
BOTH = (CHAT, NIGHT)


def test_silos_split_sixteen_to_four():
    served = fleet(pool(initial=20, minimum=2), tiers=BOTH)
    cut, whence = siloed_fleet(served)
    assert [p.initial for p in cut.pools] == [16, 4] and whence == [0, 0]
    assert [p.tiers for p in cut.pools] == [("chat",), ("night",)]
    assert [p.minimum for p in cut.pools] == [2, 2]
    assert not any(tier.deferrable for tier in cut.tiers)  # they have their own instances


@pytest.mark.parametrize(("count", "split"), [(0, [0, 0]), (1, [1, 0]), (2, [1, 1]), (3, [2, 1])])
def test_small_silos_keep_one_each(count, split):
    cut, _ = siloed_fleet(fleet(pool(initial=count), tiers=BOTH))
    assert [p.initial for p in cut.pools] == split


def test_nothing_to_cut_leaves_the_fleet():
    served = fleet(pool(initial=4), tiers=(CHAT,))
    assert siloed_fleet(served) == (served, [0])
    cut, whence = chiron_fleet(served, (4, 2, 2))
    assert [p.initial for p in cut.pools] == [4, 2] and whence == [0, 0]


def test_chiron_has_three_kinds_in_the_first_pool_with_room():
    served = fleet(pool(maximum=0), pool(maximum=12), pool(), tiers=BOTH)
    cut, whence = chiron_fleet(served)
    assert [p.initial for p in cut.pools] == [0, 0, 0, 10, 2, 0, 0, 0, 0]
    assert whence == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [pool_kind(p, cut) for p in cut.pools[:3]] == [INTERACTIVE, MIXED, BATCH]


def test_chiron_has_no_rule_for_split_instances():
    served = fleet(pool(role="prefill", link=KvLink(1.0, 1e9)), pool(role="decode"), tiers=(CHAT,))
    with pytest.raises(SimulationError, match="no rule"):
        chiron_fleet(served)


def chiron(start=(10, 5, 5), **how):
    cut, _ = chiron_fleet(fleet(pool(profile(kv=10_000)), tiers=BOTH), start)
    policy = Chiron((100.0, 50.0), **how)
    assert policy.reset(cut).tolist() == list(start)
    return policy


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        (0.6, [10, 5]),  # 9 of 15 run: at theta
        (0.64, [11, 5]),  # 9.6 / 0.6 = 16
        (1.0, [20, 5]),  # 15 / 0.6 = 25
        (0.5, [9, 5]),  # 7.5 of 15: one less
        (0.0, [9, 5]),
    ],
)
def test_interactive_backpressure(busy, expected):
    answer = chiron().decide(seen(15.0, [10, 5, 5], busy=[busy, busy, 0])).targets
    assert answer[:2].tolist() == expected


def test_interactive_instances_go_before_mixed_ones():
    policy = chiron()
    assert policy.decide(seen(15.0, [1, 5, 0], busy=0.0)).targets[:2].tolist() == [0, 5]
    assert policy.decide(seen(30.0, [0, 5, 0], busy=0.0)).targets[:2].tolist() == [0, 4]
    assert policy.decide(seen(45.0, [0, 1, 0], busy=0.0)).targets[:2].tolist() == [0, 1]


def test_batch_instances_retire_with_an_empty_queue_only():
    policy = chiron()
    calm = {"busy": 0.6}
    assert policy.decide(seen(15.0, [10, 5, 5], deferred=4, **calm)).targets[2] == 5
    working = seen(30.0, [10, 5, 5], utilisation=[0, 0, 0.2], **calm)
    assert policy.decide(working).targets[2] == 5
    assert policy.decide(seen(45.0, [10, 5, 5], **calm)).targets[2] == 0


def test_batch_instances_are_added_where_a_group_would_miss_its_deadline():
    """One instance: prefill 100 tokens in 1/16 + 100/4096 s, 50 tokens of 8 at 1/32 + 8/1024 s."""
    each_s = 1 / 16 + 100 / 4096 + 50 * (1 / 32 + 8 / 1024) / 8
    first, second = int(3 * 3600 / each_s) - 20, int(4 * 3600 / each_s)
    policy = chiron()
    calm = {"busy": 0.6}
    # In an hour five instances can do five times 3600 / each_s.
    assert policy.decide(seen(1.0, [10, 5, 5], deferred=first, **calm)).targets[2] == 5
    # Four hours' more half an hour later: of 7 an hour is left, of the first 3 half of one.
    later = seen(1800.0, [10, 5, 5], deferred=first + second, **calm)
    assert policy.decide(later).targets[2] == 7  # all of it; the first group needs 6
    later = seen(3000.0, [10, 5, 7], deferred=first + second, **calm)
    assert policy.decide(later).targets[2] == 18  # ... and in ten minutes


def test_batches_grow_below_their_target_and_shrink_above():
    policy = chiron(grow=1.25, shrink=0.5)
    running = {"busy": 0.6, "decode_tps": 100.0}
    sizes = [
        policy.decide(seen(15.0 * i, [10, 5, 5], tbt_s=tbt, **running)).max_batch.tolist()
        for i, tbt in enumerate([0.05, 0.2, 0.2, 0.05], start=1)
    ]
    # The largest is the profile's 8; batch instances have no TBT limit and stay there.
    assert sizes == [[8, 8, 8], [4, 4, 8], [2, 2, 8], [2, 2, 8]]
    assert policy.decide(seen(90.0, [10, 5, 5], tbt_s=0.05, **running)).max_batch[0] == 3


def test_a_full_batch_that_got_slower_shrinks():
    policy = chiron(grow=1.25, shrink=0.5)
    full = {"busy": 0.6, "batch": 8.0, "tbt_s": 0.05}
    policy.decide(seen(15.0, [10, 5, 5], decode_tps=1000.0, **full))
    slower = seen(30.0, [10, 5, 5], decode_tps=800.0, **full)
    assert policy.decide(slower).max_batch.tolist() == [4, 4, 4]
    assert chiron(tune_batch=False).decide(slower).max_batch is None
