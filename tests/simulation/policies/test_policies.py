"""Policies decide from observations alone; no simulation needed to say what they must answer."""

import numpy as np

from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.schedule_follower import ScheduleFollower
from simulation.policies.static import Static
from tests.simulation.builders import fleet, pool, profile
from tests.simulation.policies import observations


def seen(time_s, ready, utilisation, starting=0):
    return observations.seen(time_s, ready, utilisation=utilisation, starting=starting)


def test_flat_never_moves():
    policy = Static([3, 5], name="peak")
    assert policy.name == "peak"
    assert policy.reset(fleet(pool(), pool())).tolist() == [3, 5]
    assert policy.decide(seen(60.0, [1, 1], [0.9, 0.1])).tolist() == [3, 5]


def test_reactive_thresholds_move_one_instance():
    policy = UnifiedReactive()
    assert policy.reset(fleet(pool(initial=4))).tolist() == [4]
    assert policy.decide(seen(15.0, 4, 0.71)).tolist() == [5]
    assert policy.decide(seen(30.0, 4, 0.70, starting=1)).tolist() == [5]
    assert policy.decide(seen(45.0, 5, 0.30)).tolist() == [5]
    assert policy.decide(seen(60.0, 5, 0.29)).tolist() == [4]


def test_reactive_waits_for_what_it_asked_for():
    """With a start of ten minutes, 40 looks ask for one instance, not for 40 (they did)."""
    policy = UnifiedReactive()
    policy.reset(fleet(pool(initial=4)))
    assert policy.decide(seen(15.0, 4, 0.9)).tolist() == [5]
    asked = [policy.decide(seen(15.0 * i, 4, 0.9, starting=1)).tolist() for i in range(2, 42)]
    assert asked == [[5]] * 40
    assert policy.decide(seen(630.0, 5, 0.9)).tolist() == [6]
    # Nothing is let go meanwhile either.
    policy.reset(fleet(pool(initial=4)))
    assert policy.decide(seen(15.0, 4, 0.1, starting=1)).tolist() == [5]


def test_the_texts_cooldown_can_be_had():
    policy = UnifiedReactive(cooldown_s=15.0)
    policy.reset(fleet(pool(initial=4)))
    asked = [policy.decide(seen(15.0 * i, 4, 0.9, starting=i - 1)).tolist() for i in range(1, 5)]
    assert asked == [[5], [6], [7], [8]]


def test_reactive_rests_after_an_event_and_only_then():
    policy = UnifiedReactive(cooldown_s=20.0, interval_s=10.0)
    policy.reset(fleet(pool()))
    assert policy.decide(seen(10.0, 4, 0.9)).tolist() == [5]
    assert policy.decide(seen(20.0, 4, 0.9, starting=1)).tolist() == [5]
    assert policy.decide(seen(30.0, 4, 0.9, starting=1)).tolist() == [6]
    policy.reset(fleet(pool()))
    assert policy.decide(seen(10.0, 4, 0.9)).tolist() == [5]


def test_reactive_rests_by_endpoint_and_stays_within_limits():
    policy = UnifiedReactive()
    policy.reset(fleet(pool(region="a", maximum=4), pool(region="b"), regions=("a", "b")))
    assert policy.decide(seen(15.0, [4, 4], [0.9, 0.5])).tolist() == [4, 4]
    # No event took place at a full pool, so nothing rests.
    assert policy.decide(seen(16.0, [4, 4], [0.2, 0.9])).tolist() == [3, 5]


def test_reactive_endpoint_grows_cheapest_and_shrinks_dearest_pool():
    cheap, dear = pool(usd=1.0, maximum=5), pool(usd=3.0, minimum=1)
    policy = UnifiedReactive(cooldown_s=0.0)
    policy.reset(fleet(dear, cheap))
    assert policy.decide(seen(15.0, [2, 4], [0.9, 0.9])).tolist() == [2, 5]
    assert policy.decide(seen(30.0, [2, 5], [0.9, 0.9])).tolist() == [3, 5]
    assert policy.decide(seen(45.0, [2, 4], [0.1, 0.1])).tolist() == [1, 4]
    assert policy.decide(seen(60.0, [1, 4], [0.1, 0.1])).tolist() == [1, 3]
    # The endpoint's utilisation is that of its memory as a whole: (2 * 0.9 + 4 * 0.1) / 6.
    assert policy.decide(seen(75.0, [2, 4], [0.9, 0.1])).tolist() == [2, 4]


def test_reactive_calls_for_a_first_instance():
    policy = UnifiedReactive()
    policy.reset(fleet(pool(initial=0)))
    assert policy.decide(seen(15.0, 0, 1.0)).tolist() == [1]


def test_schedule_steps_at_its_times():
    policy = ScheduleFollower(FixedSchedule([100.0, 200.0], [[2, 1], [5, 0]]), name="plan")
    two = fleet(pool(profile(), initial=7), pool(profile(), initial=8))
    assert policy.reset(two).tolist() == [7, 8]
    times = (99.0, 100.0, 199.0, 1e6)
    asked = [policy.decide(seen(t, [0, 0], [0, 0])).targets.tolist() for t in times]
    assert asked == [[7, 8], [2, 1], [2, 1], [5, 0]]


def test_what_a_schedule_lends_does_not_serve_and_no_more_stays_lent():
    policy = ScheduleFollower(
        FixedSchedule([0.0, 100.0], [[4, 2], [3, 2]], lent=np.array([[0, 1], [2, 0]]))
    )
    assert policy.reset(fleet(pool(), pool())).tolist() == [4, 2]
    first, then = (policy.decide(seen(t, [4, 2], [0, 0])) for t in (60.0, 120.0))
    assert (first.targets.tolist(), first.lend.tolist()) == ([4, 1], [False, True])
    assert (then.targets.tolist(), then.lend.tolist()) == ([1, 2], [True, False])
    assert [actions.keep_lent.tolist() for actions in (first, then)] == [[0, 1], [2, 0]]
