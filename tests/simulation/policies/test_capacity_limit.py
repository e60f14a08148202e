"""Growth within the GPUs that pools share."""

import numpy as np

from simulation.engine.run import simulate
from simulation.fleet import KvLink, Tier
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.schedule_follower import ScheduleFollower
from simulation.policies.static import Static
from simulation.policies.wrappers.capacity_limit import CapacityLimit
from simulation.policies.wrappers.scale_in import ScaleInOptions
from simulation.start_times import StartUp
from tests.simulation.builders import fleet, pool, trace
from tests.simulation.policies.observations import seen
from tests.simulation.scripted_policies import Asking


def answered(targets, ready, groups, *pools, worth=None, **more):
    policy = CapacityLimit(Static(targets), groups, worth)
    policy.reset(fleet(*pools))
    return policy.decide(seen(60.0, ready, **more))


def granted(*arguments, **more):
    return answered(*arguments, **more).targets.tolist()


def test_what_is_up_stays_and_what_matters_alike_grows_alike():
    two = [pool(), pool()]
    assert granted([4, 4], [2, 2], [([0, 1], 8)], *two) == [4, 4]
    assert granted([4, 4], [2, 2], [([0, 1], 6)], *two) == [3, 3]
    assert granted([4, 4], [2, 2], [([0, 1], 5)], *two) == [3, 2]  # by position: a single one
    assert granted([3, 8], [2, 2], [([0, 1], 8)], *two) == [3, 5]  # 0.57 and 3.43 of 4
    assert granted([4, 1], [2, 4], [([0, 1], 6)], *two) == [2, 1]  # it may drain first
    assert granted([4, 1], [2, 1], [([0, 1], 5)], *two, draining=[0, 1]) == [3, 1]


def test_pools_share_watts_as_they_share_gpus():
    two = [pool(), pool()]
    watts = np.array([100, 300])
    assert granted([4, 4], [2, 2], [([0, 1], 99), ([0, 1], 1600, watts)], *two) == [4, 4]
    assert granted([4, 4], [2, 2], [([0, 1], 99), ([0, 1], 1300, watts)], *two) == [4, 3]
    assert granted([4, 4], [2, 2], [([0, 1], 5), ([0, 1], 9999, watts)], *two) == [3, 2]
    # Few GPUs are granted first, and only what is granted draws power.
    assert granted([9, 2], [2, 2], [([0, 1], 6), ([0, 1], 1000, watts)], *two) == [4, 2]
    assert granted([2, 9], [2, 2], [([0, 1], 99), ([1], 700, watts)], *two) == [2, 2]


def test_what_is_refused_counts_once_until_it_is_granted_or_no_longer_asked_for():
    asks = Asking([4], [5], [5], [4], [6], [2], [9])
    policy = CapacityLimit(asks, [([0], 4)])
    policy.reset(fleet(pool(maximum=8)))
    counts = []
    for look in range(6):
        policy.decide(seen(60.0 * (look + 1), [4]))
        counts.append(policy.refused)
    assert counts == [1, 1, 1, 3, 3, 8]  # 1 of 5; none new; none; 2 of 6; none; 5 of 9
    policy.reset(fleet(pool(maximum=8)))
    assert policy.refused == 0


def test_what_is_lent_holds_its_gpus():
    two = [pool(model="a"), pool(model="b")]
    # Two of pool 0 are lent: pool 1 finds one GPU free, pool 0 takes its own back.
    assert granted([2, 4], [2, 2], [([0, 1], 7)], *two, spare=[2, 0]) == [2, 3]
    assert granted([4, 4], [2, 2], [([0, 1], 7)], *two, spare=[2, 0]) == [4, 3]
    assert granted([5, 2], [2, 2], [([0, 1], 6)], *two, spare=[2, 0]) == [4, 2]
    assert granted([2, 4], [2, 2], [([0, 1], 6)], *two, spare=[2, 0]) == [2, 2]


def test_what_is_lent_is_called_back_for_who_lacks_gpus():
    """Else a plan that moves GPUs between models would never be carried out: what one pool no
    longer needs was lent for good, and the other refused."""
    two = [pool(model="a"), pool(model="b")]
    short = answered([2, 4], [2, 2], [([0, 1], 7)], *two, spare=[3, 0])
    assert (short.targets.tolist(), short.keep_lent.tolist()) == ([2, 2], [1, 0])
    enough = answered([2, 4], [2, 2], [([0, 1], 9)], *two, spare=[3, 0])
    assert (enough.targets.tolist(), enough.keep_lent) == ([2, 4], None)


def test_a_plan_that_moves_gpus_between_models_is_carried_out_while_it_lends():
    pools = [pool(model=name, initial=4, today=4, startup_s=10.0) for name in ("a", "b")]
    served = fleet(*pools)
    plan = ScheduleFollower(FixedSchedule([0.0, 60.0], [[4, 4], [2, 6]]))
    policy = ScaleInOptions(CapacityLimit(plan, [([0, 1], 8)]), lend=True)
    result = simulate(trace([], [], []), served, policy, duration_s=600.0)
    series = result.series
    assert series.ready[:, -1].tolist() == [2.0, 6.0]
    assert (series.ready + series.starting + series.lent).sum(axis=0).max() <= 8 + 1e-9


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
    assert not CapacityLimit(Static([1]), []).wants_signals
    asks = Static([1])
    asks.wants_signals = True
    assert CapacityLimit(asks, []).wants_signals
    assert np.array_equal(CapacityLimit(asks, []).reset(fleet(pool())), [1])


def services(**how):
    return [pool(model="a", **how), pool(model="b", **how)]


def test_what_matters_more_grows_first_wherever_it_stands():
    for worth, grown in (([1.0, 2.0], [2, 4]), ([2.0, 1.0], [4, 2])):
        counts = granted([4, 4], [2, 2], [([0, 1], 6)], *services(), worth=worth)
        assert counts == grown


def test_what_matters_less_is_reduced_where_room_is_short_and_no_further():
    worth = [1.0, 2.0]
    actions = answered([4, 5], [4, 4], [([0, 1], 8)], *services(), worth=worth)
    assert actions.targets.tolist() == [3, 4]  # it drains first
    assert actions.firm.tolist() == [True, False]
    # While it drains no more are taken, and it does not come back.
    actions = answered([4, 5], [3, 4], [([0, 1], 8)], *services(), worth=worth, draining=[1, 0])
    assert actions.targets.tolist() == [3, 4] and actions.firm is None
    assert granted([4, 5], [3, 4], [([0, 1], 8)], *services(), worth=worth) == [3, 5]
    # Down to its minimum, and to one instance.
    assert granted([4, 9], [4, 4], [([0, 1], 8)], *services(), worth=worth) == [1, 4]
    assert granted([4, 9], [4, 4], [([0, 1], 8)], *services(minimum=3), worth=worth) == [3, 4]
    # Alike: what is up stays up.
    assert granted([4, 9], [4, 4], [([0, 1], 8)], *services()) == [4, 4]


def test_the_least_worthy_gives_first():
    three = [pool(model="a"), pool(model="b"), pool(model="c")]
    worth = [2.0, 1.0, 3.0]
    assert granted([3, 3, 4], [3, 3, 3], [([0, 1, 2], 9)], *three, worth=worth) == [3, 2, 3]
    assert granted([3, 3, 6], [3, 3, 3], [([0, 1, 2], 9)], *three, worth=worth) == [2, 1, 3]


def test_both_roles_of_a_split_service_give_alike():
    link = KvLink(1.0, 1e9)
    pools = [
        pool(model="a", role="prefill", link=link),
        pool(model="a", role="decode"),
        pool(model="b"),
    ]
    # Decode shares its GPUs with b, prefill has its own: half of decode goes, and half of prefill.
    actions = answered(
        [5, 9, 5], [5, 9, 1], [([0], 5), ([1, 2], 10)], *pools, worth=[1.0, 1.0, 2.0]
    )
    assert actions.targets.tolist() == [3, 5, 1]
    assert actions.firm.tolist() == [True, True, False]


def test_what_gives_way_goes_at_once_and_the_rest_softly():
    soft = {"targets": [3, 1], "soft_s": 200.0, "firm": [True, False]}
    result = simulate(
        trace([0.0], 10, 2),
        fleet(*services(startup_s=10.0), tiers=(Tier("t"),)),
        Asking([4, 2], soft),
        duration_s=180.0,
    )
    np.testing.assert_allclose(result.series.draining, [[0, 0, 0], [0, 1, 1]])


def test_in_a_replay_the_worthier_gets_its_gpus_and_gives_them_back():
    """Three GPUs; b wants two for two minutes while a has two."""
    answers = [[2, 1], [2, 2], [2, 2], [2, 2], [2, 1], [2, 1], [2, 1]]
    policy = CapacityLimit(Asking([2, 1], *answers), [([0, 1], 3)], np.array([1.0, 2.0]))
    result = simulate(
        trace([0.0], 10, 2), fleet(*services(startup_s=0.0)), policy, duration_s=480.0
    )
    np.testing.assert_allclose(result.series.ready[1], [1, 1, 1, 2, 2, 1, 1, 1])
    np.testing.assert_allclose(result.series.ready[0], [2, 2, 1, 1, 1, 1, 2, 2])
