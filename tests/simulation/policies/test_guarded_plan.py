"""A plan as the least, and above it what the guard asks for, worked out by hand."""

import numpy as np

from simulation.fleet import KvLink
from simulation.policies.guarded_plan import GuardedPlan
from simulation.policies.parts.guard import AIM
from simulation.policies.parts.schedule import FixedSchedule
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observations import seen

HOUR = 3600.0
STEP = {"waiting": 0, "batch": 5.0, "prefill_tps": 0.0}


def guarded(planned=4, roles=("both",), closed=False, **how):
    """Of one pool for each of the roles, in one region, or in as many that are closed."""
    plan_schedule = FixedSchedule([0.0, HOUR], [[planned] * len(roles), [2] * len(roles)])
    fields = {"prefill_tps": 1000.0, "decode_tps": 100.0, "in_flight": 10.0, **how}
    policy = GuardedPlan(plan_schedule, **fields)
    links = {"prefill": {"link": KvLink(1.0, 1e9)}}
    regions = tuple("abcd"[: len(roles)]) if closed else ("r",) * len(roles)
    pools = (
        pool(initial=planned, role=role, region=region, **links.get(role, {}))
        for role, region in zip(roles, regions, strict=True)
    )
    apart = np.where(np.eye(len(roles), dtype=bool), 0.0, np.inf) if closed else None
    policy.reset(fleet(*pools, regions=tuple(dict.fromkeys(regions)), latency=apart))
    return policy


def asked(policy, looks, ready=4, begins=0, **fields):
    """Targets of so many looks of the same."""
    times = [15.0 * (begins + i) for i in range(1, looks + 1)]
    return [policy.decide(seen(t, ready, **STEP | fields)).targets.tolist() for t in times]


def test_while_the_plan_is_right_it_is_the_plan():
    policy = guarded()
    # 440 tokens/s are 4.4 instances: within the tolerance of the 4 planned.
    assert asked(policy, 40, decode_tps=440.0, batch=12.0) == [[4]] * 40
    assert policy.decide(seen(HOUR, 4, decode_tps=150.0)).targets.tolist() == [2]


def test_what_is_served_beyond_the_plan_counts_once_a_minute_has_shown_it():
    policy = guarded()
    # The look at 0 goes out of sight after a minute.
    assert asked(policy, 5, decode_tps=560.0) == [[4]] * 3 + [[6]] * 2
    assert asked(policy, 1, begins=5, decode_tps=100.0) == [[6]]  # stays for five minutes
    assert asked(policy, 24, begins=6, decode_tps=100.0)[-1] == [4]
    # Prompts count likewise; a moment between, and the minute begins anew.
    policy = guarded()
    assert asked(policy, 3, prefill_tps=9000.0) == [[4]] * 3
    assert asked(policy, 1, begins=3, prefill_tps=100.0) == [[4]]
    assert asked(policy, 3, begins=4, prefill_tps=9000.0) == [[4]] * 3


def test_what_piles_up_asks_for_what_holds_it_while_it_grows():
    """4 instances hold 40; twice as many and more at each look is a pile, of which 100% more of
    those there are comes in 15 s."""
    policy = guarded()
    flights = [40, 90, 100, 110, 120, 130]
    targets = [asked(policy, 1, begins=i, batch=n / 4)[0][0] for i, n in enumerate(flights)]
    assert targets == [4, 4, 4, 4, 8, 8]
    policy = guarded()
    assert asked(policy, 5, batch=25.0)[-2:] == [[8], [8]]  # it came at once, and lasts
    # Those asked for start: no more for what grows no more.
    assert asked(policy, 3, begins=5, batch=26.0, starting=4) == [[8]] * 3
    # One serves and the pile falls by more than a tenth a minute: no more, and none goes.
    policy = guarded()
    assert asked(policy, 5, batch=50.0)[-1] == [8]
    falls = [180, 160, 145, 130, 115, 105]
    assert [asked(policy, 1, begins=5 + i, batch=n / 5, ready=5, starting=3)[0][0]
            for i, n in enumerate(falls)] == [8] * 6  # fmt: skip
    few = guarded()
    assert [asked(few, 1, begins=i, batch=19.0)[0][0] for i in range(12)] == [4] * 12


def test_it_asks_by_what_so_many_carry_together():
    """Two carry 1.4 of a large pool's, four 3.2, five 4.2, six 5.2: what four are planned for asks
    for nothing, however much less each serves than one of many would; a fifth more asks for six,
    not for the seven of four's own rate."""
    each = np.array([[0.6, 0.7, 0.75, 0.8, 0.84, 5.2 / 6, 0.9, 1.0]])
    policy = guarded(shares=each)
    assert asked(policy, 20, decode_tps=320.0) == [[4]] * 20
    assert asked(policy, 20, begins=20, decode_tps=345.0) == [[4]] * 20  # within the tolerance
    assert asked(policy, 5, begins=40, decode_tps=440.0)[-1] == [6]
    policy = guarded(shares=each)
    # They hold 32: 60 in flight are no pile, 70 are, and 8 hold them.
    assert asked(policy, 20, batch=15.0) == [[4]] * 20
    assert asked(policy, 5, begins=20, batch=17.5)[-1] == [8]
    computed = {setting.what: setting.values for setting in policy.computed_parameters()}
    assert computed["above the plan: share of that load, pools of 2"] == 0.7
    assert computed["above the plan: share of that load, pools of 64"] == 1.0


def test_what_is_asked_for_never_falls_below_the_plan_and_rises_with_what_is_served():
    each = np.array([1.0 - 0.5 * np.arange(1, 65) ** -0.5]) / (1.0 - 0.5 / 8)
    before = 0
    for tps in np.linspace(0.0, 3000.0, 31):
        (count,) = asked(guarded(shares=each), 5, ready=30, decode_tps=tps)[-1]
        assert count >= max(4, before)
        before = count


def test_one_region_may_serve_what_the_plan_has_elsewhere():
    """Two pools of one model, four planned in each: what one serves too much and the other has to
    spare is the router's, what both together do not carry is the guard's."""
    policy = guarded(roles=("both", "both"))
    apart = asked(policy, 8, ready=[4, 4], decode_tps=np.array([560.0, 240.0]))
    assert apart == [[4, 4]] * 8
    both = asked(policy, 8, ready=[4, 4], begins=8, decode_tps=np.array([560.0, 340.0]))
    assert both[-1] == [6, 4]
    closed = guarded(roles=("both", "both"), closed=True)
    assert asked(closed, 8, ready=[4, 4], decode_tps=np.array([560.0, 240.0]))[-1] == [6, 4]


ALLOWED = 1.0 - min(tier.attainment for tier in fleet(pool()).tiers if not tier.deferrable)


def late(policy, looks, begins=0, ready=4, share=1.0, batch=8.0, **fields):
    """Targets if a share of the requests is late, at 95% of the load of four planned instances."""
    return asked(policy, looks, ready, begins, late_done=share, batch=batch, decode_tps=380.0,
                 **fields)  # fmt: skip


def test_what_is_late_without_a_pile_tells_that_an_instance_carries_less():
    """Four planned hold 40 and serve 400 tokens/s: at 380 and 52 in flight 30% come late, so that
    0.95 of what they were believed to carry is too much, and 3.8 * 1.1 / 0.95 = 4.4 are needed."""
    policy = guarded()
    assert late(policy, 5, share=0.3, batch=13.0)[-1] == [5]
    # It stays while the load does, long after what asked for it was last seen; and follows it.
    assert asked(policy, 60, 5, 5, late_done=0.0, batch=8.0, decode_tps=380.0)[-1] == [5]
    assert asked(policy, 30, 5, 65, late_done=0.0, batch=8.0, decode_tps=300.0)[-1] == [4]
    # More than was too much is served in time by four: what was learned is gone.
    assert asked(policy, 30, 4, 95, late_done=0.0, decode_tps=410.0)[-1] == [4]
    assert asked(policy, 30, 4, 125, late_done=0.0, decode_tps=380.0)[-1] == [4]


def test_what_is_late_for_another_reason_teaches_nothing():
    for fields in (
        {"share": ALLOWED, "batch": 13.0},  # no more than the tier lets through
        {"share": 0.25, "batch": 10.5},  # no more in flight than they hold, within the tolerance
        {"share": 0.25, "batch": 13.0, "starting": 1},  # somebody is on the way already
    ):
        assert late(guarded(), 5, **fields)[-1] == [4], fields
    policy = guarded()
    asked(policy, 5, batch=25.0, late_done=1.0)  # a pile, and what is left of it
    # The pile's, for five minutes, and nothing is learned, nor counted for fifteen.
    assert late(policy, 20, 5, share=0.3, batch=13.0)[-1] == [8]
    assert late(policy, 40, 25, share=0.3)[-1] == [4]


def test_no_more_late_requests_than_the_aim_add_nothing():
    for share in (0.0, 0.5 * AIM * ALLOWED, AIM * ALLOWED):
        assert late(guarded(), 200, share=share) == [[4]] * 200


def test_late_requests_add_instances_by_the_root_of_their_excess():
    """By hand: 4 * sqrt(2) = 5.7 with at least twice the share aimed at. Six ready instances are as
    many as the share aimed at requires."""
    assert late(guarded(), 100, share=4 * ALLOWED)[-1] == [6]
    assert late(guarded(), 400, ready=6, share=AIM * ALLOWED)[-1] == [4]


def test_instances_for_late_requests_leave_slowly_when_none_are_late():
    policy = guarded()
    assert late(policy, 60, share=1.5 * ALLOWED)[-1] == [5]
    after = [count for (count,) in late(policy, 200, begins=60, ready=5, share=0.0)]
    # Five instances of a load that needs four last for more than fall_s, and less than an hour.
    assert after[:21] == [5] * 21 and after[-1] == 4
    assert after == sorted(after, reverse=True)


def test_late_first_tokens_and_slow_outputs_add_up():
    share = 0.8 * AIM * ALLOWED
    both = late(guarded(), 100, share=share, late_first=share)
    assert both[-1] == [5] and late(guarded(), 100, share=share)[-1] == [4]


def test_late_requests_that_no_instance_helps_add_a_limited_number():
    policy, ready = guarded(), 4
    for i in range(230):
        ((ready,),) = late(policy, 1, begins=i, ready=ready)
    assert ready == np.ceil(3.8 / 0.3)  # 30% of an instance's load


def test_roles_go_by_what_they_do():
    policy = guarded(roles=("prefill", "decode"))
    both = {"prefill_tps": np.array([6000.0, 0.0]), "decode_tps": np.array([600.0, 300.0])}
    assert asked(policy, 5, ready=[4, 4], **both)[-1] == [6, 4]
    computed = {setting.what: setting.values for setting in policy.computed_parameters()}
    assert np.isnan(computed["above the plan: output tokens/s per replica"][0])
