"""Soft scale-in that is undone where limits are missed."""

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.fleet import KvLink, Tier
from simulation.policies.parts.stability import Stability
from simulation.policies.proportional import Proportional
from simulation.policies.static import Static
from simulation.policies.wrappers.scale_in import ScaleInUndo
from tests.simulation.builders import SLOW, SLOW_ALONE, fleet, pool, trace
from tests.simulation.policies.observations import seen
from tests.simulation.scripted_policies import Asking

CHAT = Tier("t", ttft_s=1.0, tbt_s=0.1, attainment=0.9)
SOFT = {"targets": [6], "soft_s": 300.0}
CALM = {"late_first": 0.05, "late_done": 0.0}
LATE = {"late_first": 0.2, "late_done": 0.0}


def watching(*asked, pools=None, first=(10,)):
    policy = ScaleInUndo(Asking(list(first), *asked))
    policy.reset(fleet(*(pools or [pool(initial=10)]), tiers=[CHAT]))
    return policy


def asked(policy, *arguments, **more):
    return policy.decide(seen(*arguments, **more)).targets.tolist()


def test_late_requests_bring_them_back_at_once_and_keep_them_for_the_watch():
    policy = watching(SOFT)
    assert asked(policy, 60.0, 10, **CALM) == [6]
    assert asked(policy, 90.0, 6, draining=4, **CALM) == [6]  # 5% late, 10% allowed
    assert asked(policy, 120.0, 6, draining=4, **LATE) == [10]
    assert asked(policy, 180.0, 10, **CALM) == [10]  # until 360 s, when the watch was to end
    assert asked(policy, 360.0, 10, **CALM) == [6]


@pytest.mark.parametrize(("late", "back"), [({"late_done": 0.11}, [10]), ({}, [6])])
def test_gaps_count_as_well_and_silence_is_no_reason(late, back):
    policy = watching(SOFT)
    assert asked(policy, 60.0, 10) == [6]
    assert asked(policy, 120.0, 6, draining=4, **late) == back


def test_those_gone_or_taken_out_for_good_do_not_come_back():
    policy = watching(SOFT)
    assert asked(policy, 60.0, 10, **CALM) == [6]
    assert asked(policy, 120.0, 6, draining=2, **LATE) == [8]  # two are gone already
    policy = watching(SOFT)
    assert asked(policy, 60.0, 10, **CALM) == [6]
    assert asked(policy, 361.0, 6, draining=4, **LATE) == [6]  # their time is over
    policy = watching([6])
    assert asked(policy, 60.0, 10, **CALM) == [6]
    assert asked(policy, 120.0, 6, draining=4, **LATE) == [6]


def test_cancelled_starts_are_gone_at_once():
    policy = watching(SOFT)
    assert asked(policy, 60.0, 7, starting=3, **CALM) == [6]  # three starts and one instance
    assert asked(policy, 120.0, 6, draining=4, **LATE) == [7]


def test_both_roles_of_a_split_service_come_back_together():
    two = [pool(role="prefill", link=KvLink(1.0, 1e9), initial=4), pool(role="decode", initial=8)]
    policy = watching({"targets": [2, 4], "soft_s": 300.0}, pools=two, first=(4, 8))
    assert asked(policy, 60.0, [4, 8]) == [2, 4]
    assert asked(policy, 120.0, [2, 4], draining=[2, 4], late_first=[0.2, np.nan]) == [4, 8]


def test_a_cooling_controller_is_not_waited_for():
    """At 30 s, with cooling of 60: the controller by itself came back at 70 s."""
    how = Stability(cool_out_s=60.0, cool_in_s=0.0, soft_s=300.0)
    policy = ScaleInUndo(Proportional("decode-tps", 100.0, stability=how))
    policy.reset(fleet(pool(initial=10), tiers=[CHAT]))
    assert asked(policy, 10.0, 10, decode_tps=500) == [5]
    assert asked(policy, 40.0, 5, draining=5, decode_tps=500, **LATE) == [10]


def test_in_a_replay_the_limits_decide():
    """One instance serves a token a second; of two, one goes softly while load rises."""
    requests = trace(np.arange(0.0, 300.0, 3.0), 10, 20)
    for limit_s, back in ((2.0, 1), (1000.0, 0)):
        result = simulate(
            requests,
            fleet(pool(SLOW, startup_s=500.0), tiers=[Tier("t", ttft_s=limit_s)]),
            ScaleInUndo(Asking([2], {"targets": [1], "soft_s": 200.0}, every=10.0)),
            duration_s=300.0,
        )
        assert (result.totals.reinstated[0] > 0) == back
        assert result.totals.starts.sum() == 0


def test_shares_of_late_requests_are_read_by_the_engine():
    """By hand: a first token after 2 s and one after 1 s; gaps of a second each."""
    policy = Asking([1], [1], every=60.0)
    policy.wants_signals = True
    served = fleet(pool(SLOW_ALONE), tiers=[Tier("t", ttft_s=1.5, tbt_s=0.5)])
    simulate(trace([0.0, 0.0, 50.0], 10, [1, 1, 3]), served, policy, duration_s=130.0)
    first, second = (look.signals for look in policy.seen)
    assert first.late_first[0] == pytest.approx(1 / 3) and np.isnan(second.late_first[0])
    assert first.late_done[0] == pytest.approx(1 / 3) and np.isnan(second.late_done[0])


def test_signals_are_asked_for_where_something_may_stay():
    assert (
        ScaleInUndo(Static([1])).wants_signals
        and not ScaleInUndo(Static([1]), reads=False).wants_signals
    )
