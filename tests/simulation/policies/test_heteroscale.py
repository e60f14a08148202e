"""Algorithms 2 and 3, the P/D ratio and what keeps them steady: worked out by hand."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from simulation.errors import SimulationError
from simulation.fleet import KvLink, Tier
from simulation.policies.feedback import Feedback
from simulation.policies.kv_aware import KvAware
from simulation.policies.parts.ratio import PdRatio
from simulation.policies.parts.stability import Stability
from simulation.policies.proportional import SIGNALS, Proportional
from simulation.policies.wrappers.safety_layer import SafetyLayer
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observations import seen

LINK = KvLink(1.0, 1e9)
AT_ONCE = Stability(cool_out_s=0.0, cool_in_s=0.0)
CHAT = Tier("t", ttft_s=1.0, tbt_s=0.1)


def split(prefill=2, decode=4, tiers=(CHAT,), **how):
    return fleet(
        pool(role="prefill", link=LINK, initial=prefill, **how),
        pool(role="decode", initial=decode, **how),
        tiers=tiers,
    )


def ready(policy, served):
    policy.reset(served)
    return policy


def asked(policy, *arguments, **more):
    return policy.decide(seen(*arguments, **more)).targets.tolist()


@given(st.integers(1, 6400), st.integers(1, 60))
@example(440, 4)
@example(441, 4)
@example(320, 4)
@example(319, 4)
@example(1, 4)
def test_throughput_over_target_per_instance_beyond_the_thresholds(tps, count):
    policy = ready(Proportional("decode-tps", 100.0, stability=AT_ONCE), fleet(pool(initial=count)))
    expected = count if 80 * count <= tps <= 110 * count else -(-tps // 100)
    assert asked(policy, 60.0, count, decode_tps=tps) == [expected]


def test_instances_on_their_way_are_not_asked_for_again():
    policy = ready(Proportional("decode-tps", 100.0, stability=AT_ONCE), fleet(pool(initial=4)))
    assert asked(policy, 60.0, 4, starting=4, decode_tps=800) == [8]


def piling(*looks, holds=10.0, **how):
    policy = Proportional("decode-tps", 100.0, holds, stability=AT_ONCE, **how)
    ready(policy, fleet(pool(initial=4)))
    return [asked(policy, 60.0 * i, n, **shown)[0] for i, (n, shown) in enumerate(looks, 1)]


def test_what_piles_up_is_asked_for_where_the_signal_can_show_no_more():
    """Four instances give 110 tokens/s each at most, and hold 10 requests each at their target."""
    most = {"decode_tps": 440}
    calm = (4, most | {"batch": 9.0})
    assert piling(calm, (4, most | {"batch": 30.0})) == [4, 12]  # 120 in flight
    assert piling(calm, (4, most | {"batch": 19.0})) == [4, 4]  # fewer than twice 40
    assert piling(calm, (4, most | {"batch": 30.0}), holds=None) == [4, 4]  # as in the source
    assert piling(calm, (4, most | {"batch": 500.0})) == [4, 16]  # at most fourfold
    assert piling(calm, (4, most | {"batch": 9.0, "waiting": 84})) == [4, 12]


def test_what_drains_asks_for_no_more():
    most, here = {"decode_tps": 440}, {"starting": 8}
    looks = [(4, most | {"batch": 9.0}), (4, most | {"batch": 30.0})]
    looks += [(4, most | here | {"batch": 32.0})]  # hardly more than before
    # Eight more are ready, and the batches of the last minute were means over four.
    looks += [(12, {"decode_tps": 1100, "batch": 31.0}), (12, {"decode_tps": 1150, "batch": 11.0})]
    assert piling(*looks) == [4, 12, 12, 12, 12]


@pytest.mark.parametrize("signal", SIGNALS)
def test_each_signal_drives_both_pools_through_the_ratio(signal):
    policy = ready(
        Proportional(signal, 0.5 if "tps" not in signal else 50.0, stability=AT_ONCE), split()
    )
    shown = {"busy": 1.0, "sm_activity": 1.0}
    total = 200.0 if SIGNALS[signal].driving_role == "prefill" else 400.0
    shown |= {"prefill_tps": [total, 0], "decode_tps": [0, total]}
    assert asked(policy, 60.0, [2, 4], **shown) == [4, 8]


def test_ratio_rounds_up_and_a_shrinking_service_keeps_it():
    policy = ready(Proportional("decode-tps", 100.0, stability=AT_ONCE), split(2, 6))
    assert asked(policy, 60.0, [2, 6], decode_tps=[0, 700]) == [3, 7]  # 7/3 rounded up
    assert asked(policy, 120.0, [3, 7], decode_tps=[0, 300]) == [1, 3]


def test_the_ratio_of_a_pressure_test_is_one_per_service():
    two = fleet(
        pool(model="a", role="prefill", link=LINK, initial=8),
        pool(model="a", role="decode", initial=4),
        pool(model="b", role="prefill", link=LINK, initial=2),
        pool(model="b", role="decode", initial=4),
        pool(model="c"),
    )
    ratio = PdRatio("fixed", np.array([2.2, 2.2, np.nan, np.nan, np.nan]))
    policy = ready(Proportional("decode-tps", 100.0, stability=AT_ONCE, ratio=ratio), two)
    assert (ratio.prefills_per_decode(0), ratio.prefills_per_decode(1)) == (
        2.2,
        0.5,
    )  # of b none was found: as it begins
    shown = [0, 800, 0, 800, 0]
    assert asked(policy, 60.0, [8, 4, 2, 4, 1], decode_tps=shown)[:4] == [18, 8, 4, 8]


def test_missing_prefill_instances_are_brought_back():
    policy = ready(Proportional("decode-tps", 100.0, stability=AT_ONCE), split(4, 4))
    assert asked(policy, 60.0, [1, 4], decode_tps=[0, 400]) == [4, 4]  # three were lost
    assert asked(policy, 120.0, [3, 4], decode_tps=[0, 400]) == [3, 4]  # one off is rounding


def test_what_rounding_leaves_is_no_drift():
    policy = ready(Proportional("prefill-tps", 100.0, stability=AT_ONCE), split(9, 3))
    # Seven prefill need three decode, for whom there could be nine.
    assert asked(policy, 60.0, [9, 3], prefill_tps=[700, 0]) == [7, 3]
    assert asked(policy, 120.0, [7, 3], prefill_tps=[700, 0]) == [7, 3]
    assert asked(policy, 180.0, [4, 3], prefill_tps=[400, 0]) == [9, 3]  # five were lost


def test_cooling_by_direction_and_hysteresis():
    how = Stability(theta_out=0.1, theta_in=0.3, cool_out_s=100.0, cool_in_s=300.0)
    policy = ready(Proportional("decode-tps", 100.0, stability=how), fleet(pool(initial=10)))
    assert asked(policy, 60.0, 10, decode_tps=1200) == [12]
    assert asked(policy, 120.0, 12, decode_tps=1500) == [12]  # 60 s after: too early
    assert asked(policy, 160.0, 12, decode_tps=1500) == [15]
    assert asked(policy, 400.0, 15, decode_tps=800) == [15]  # 240 s after: too early to shrink
    assert asked(policy, 460.0, 15, decode_tps=1100) == [15]  # within the thresholds
    assert asked(policy, 460.0, 15, decode_tps=800) == [8]


def test_dampening_goes_part_of_the_way_and_soft_scale_in_is_passed_on():
    how = Stability(cool_out_s=0, cool_in_s=0, damping=0.5, soft_s=120.0)
    policy = ready(Proportional("decode-tps", 100.0, stability=how), fleet(pool(initial=10)))
    answer = policy.decide(seen(60.0, 10, decode_tps=2000))
    assert answer.targets.tolist() == [15] and answer.soft_s == 120.0
    assert asked(policy, 120.0, 10, decode_tps=400) == [7]
    assert asked(policy, 180.0, 2, decode_tps=100) == [1]  # a step is never nothing


def test_targets_by_pool_weigh_what_is_ready():
    policy = ready(
        Proportional("decode-tps", [100.0, 200.0], stability=AT_ONCE),
        fleet(pool(usd=1), pool(usd=2)),
    )
    # 600 tokens/s over (2 x 100 + 2 x 200) / 4 = 150 each: 4 instances, as they are.
    assert asked(policy, 60.0, [2, 2], decode_tps=[200, 400]) == [2, 2]
    assert asked(policy, 120.0, [2, 2], decode_tps=[300, 600]) == [4, 2]


def test_a_ratio_that_follows_the_traffic():
    """One prefill instance takes 1000 tokens/s, one decode instance 100."""
    ratio = PdRatio("observed", prefill_tps=1000.0, decode_tps=100.0, half_life_s=60.0)
    policy = ready(Proportional("decode-tps", 100.0, stability=AT_ONCE, ratio=ratio), split(2, 4))
    assert asked(policy, 60.0, [2, 4], prefill_tps=[2000, 0], decode_tps=[0, 400]) == [2, 4]
    assert ratio.prefills_per_decode(0) == 0.5
    # Prompts get longer: 4 instances' worth of prefill for 4 of decode.
    for i in range(2, 12):
        answer = asked(policy, 60.0 * i, [2, 4], prefill_tps=[4000, 0], decode_tps=[0, 400])
    assert 0.9 < ratio.prefills_per_decode(0) <= 1.0 and answer == [4, 4]
    begun = PdRatio("observed", 3.0, prefill_tps=1000.0, decode_tps=100.0)
    ready(Proportional("decode-tps", 100.0, ratio=begun), split(2, 4))
    assert begun.prefills_per_decode(0) == 3.0


@pytest.mark.parametrize(
    ("latency", "expected"),
    [(1.0, 12), (0.99, 11), (0.8, 11), (0.79, 10), (0.51, 10), (0.5, 9), (0.0, 9)],
)
def test_feedback_steps_by_threshold(latency, expected):
    how = {"stability": AT_ONCE}
    policy = ready(Feedback("ttft", **how), fleet(pool(initial=10), tiers=[CHAT]))
    assert asked(policy, 60.0, 10, ttft_s=latency) == [expected]
    policy = ready(Feedback("tbt", 0.2, **how), fleet(pool(initial=10), tiers=[CHAT]))
    assert asked(policy, 60.0, 10, tbt_s=latency * 0.2) == [expected]


def test_feedback_waits_by_direction():
    """As printed a scale-in may return as ScaleOut and wait for C_up; here never."""
    how = Stability(cool_out_s=60.0, cool_in_s=300.0)
    policy = ready(Feedback("ttft", stability=how), fleet(pool(initial=10), tiers=[CHAT]))
    assert asked(policy, 60.0, 10, ttft_s=2.0) == [12]
    assert asked(policy, 180.0, 12, ttft_s=0.1) == [12]
    assert asked(policy, 360.0, 12, ttft_s=0.1) == [11]


def test_a_step_out_is_taken_from_what_is_ready():
    """Starts of ten minutes and a breach that goes on: one step more, not one a minute."""
    policy = ready(Feedback("ttft"), split(8, 4))
    here, coming = np.array([8, 4]), np.zeros(2, np.int64)
    for minute in range(1, 11):
        targets = asked(policy, 60.0 * minute, here, starting=coming, ttft_s=[2.0, np.nan])
        coming = np.array(targets) - here
    assert targets == [10, 5]
    assert asked(policy, 660.0, [10, 5], ttft_s=[2.0, np.nan]) == [12, 6]
    # Moderate first, then severe: what is ready and the larger step.
    policy = ready(Feedback("ttft", stability=AT_ONCE), fleet(pool(initial=10), tiers=[CHAT]))
    assert asked(policy, 60.0, 10, ttft_s=0.9) == [11]
    assert asked(policy, 120.0, 10, starting=1, ttft_s=1.5) == [12]
    assert asked(policy, 180.0, 0, starting=3, waiting=9) == [3]


def test_feedback_of_a_split_service_moves_both_pools():
    policy = ready(Feedback("ttft", stability=AT_ONCE), split(5, 10))
    assert asked(policy, 60.0, [5, 10], ttft_s=[1.2, np.nan]) == [6, 12]
    policy = ready(Feedback("tbt", stability=AT_ONCE), split(5, 10))
    assert asked(policy, 60.0, [5, 10], tbt_s=[np.nan, 0.2]) == [6, 12]


def test_feedback_without_a_reading():
    policy = ready(Feedback("ttft", stability=AT_ONCE), fleet(pool(initial=4), tiers=[CHAT]))
    assert asked(policy, 60.0, 4) == [3]  # idle: as good as no latency
    assert asked(policy, 120.0, 4, utilisation=0.5) == [4]  # busy, nothing finished: unknown
    assert asked(policy, 180.0, 0, waiting=2) == [1]
    with pytest.raises(SimulationError, match="needs a target"):
        Feedback("ttft").reset(fleet(pool()))


def test_safety_layer_only_adds():
    def both():
        how = {"stability": AT_ONCE}
        driver = Proportional("decode-tps", 100.0, stability=AT_ONCE)
        policy = SafetyLayer(driver, (Feedback("ttft", **how), Feedback("tbt", **how)))
        return ready(policy, fleet(pool(initial=10), tiers=[CHAT]))

    calm = {"ttft_s": 0.1, "tbt_s": 0.01}
    assert asked(both(), 60.0, 10, decode_tps=1000, **calm) == [10]  # never shrinks
    assert asked(both(), 60.0, 10, decode_tps=500, **calm) == [5]  # the driver does
    assert asked(both(), 60.0, 10, decode_tps=500, ttft_s=0.9, tbt_s=0.01) == [11]
    assert asked(both(), 60.0, 10, decode_tps=500, ttft_s=0.1, tbt_s=0.2) == [12]
    assert asked(both(), 60.0, 10, decode_tps=1500, ttft_s=2.0, tbt_s=0.01) == [15]


def test_what_safety_adds_stays_for_the_drivers_wait():
    how = Stability(cool_out_s=0.0, cool_in_s=300.0)
    driver, layer = (
        Proportional("decode-tps", 100.0, stability=how),
        Feedback("ttft", 1.0, stability=how),
    )
    policy = ready(SafetyLayer(driver, (layer,)), fleet(pool(initial=10)))
    assert asked(policy, 60.0, 10, decode_tps=1000, ttft_s=1.2) == [12]
    calm = {"starting": 2, "decode_tps": 500, "ttft_s": 0.2}
    assert asked(policy, 120.0, 10, **calm) == [12]
    assert asked(policy, 359.0, 10, **calm) == [12]
    assert asked(policy, 360.0, 10, **calm) == [5]


def kv(initial=10, **how):
    policy = KvAware(stability=AT_ONCE, **how)
    return ready(policy, fleet(pool(initial=initial)))


def test_kv_pressure_is_held_at_its_target():
    assert asked(kv(), 60.0, 10, utilisation=0.7) == [10]
    assert asked(kv(), 60.0, 10, utilisation=0.84) == [12]
    assert asked(kv(), 60.0, 10, utilisation=0.35) == [5]


def test_preemptions_call_for_more_and_forbid_less():
    # 11 a minute on 10 instances: above 1 each.
    assert asked(kv(), 60.0, 10, utilisation=0.5, preemptions=11) == [11]
    assert asked(kv(), 60.0, 10, utilisation=0.5, preemptions=10) == [8]
    assert asked(kv(), 60.0, 10, starting=1, utilisation=0.4, preemptions=11) == [11]


def test_a_thrashing_prefix_cache_calls_for_more():
    policy = kv()
    calm = {"utilisation": 0.7, "prefill_tps": 100.0}
    assert asked(policy, 60.0, 10, hit_rate=0.6, evicted_tps=10.0, **calm) == [10]
    assert asked(policy, 120.0, 10, hit_rate=0.55, evicted_tps=90.0, **calm) == [10]
    assert asked(policy, 180.0, 10, hit_rate=0.45, evicted_tps=40.0, **calm) == [10]
    assert asked(policy, 240.0, 10, hit_rate=0.45, evicted_tps=60.0, **calm) == [11]


@pytest.mark.parametrize("start", [2, 30])
def test_constant_load_settles_from_either_side(start):
    """700 tokens/s, 100 an instance; a reading cannot pass what the ready ones do."""
    policies = [
        ready(Proportional("decode-tps", 100.0), fleet(pool(initial=start))),
        ready(KvAware(), fleet(pool(initial=start))),
    ]
    for policy in policies:
        count, counts = start, []
        for i in range(1, 100):
            flow = min(700.0, 150.0 * count)
            used = min(1.0, 4.9 / count)
            count = asked(policy, 60.0 * i, count, decode_tps=flow, utilisation=used)[0]
            counts.append(count)
        assert len(set(counts[-50:])) == 1, counts
        assert 7 <= counts[-1] <= 8


def test_more_load_never_means_fewer_instances():
    for make in (
        lambda: Proportional("prefill-tps", 100.0, stability=AT_ONCE),
        lambda: Feedback("ttft", stability=AT_ONCE),
        lambda: KvAware(stability=AT_ONCE),
    ):
        answers = []
        for load in np.linspace(0.0, 2.0, 41):
            policy = ready(make(), fleet(pool(initial=10), tiers=[CHAT]))
            shown = {"prefill_tps": 1000 * load, "ttft_s": load, "utilisation": min(load / 2, 1)}
            answers.append(asked(policy, 60.0, 10, **shown)[0])
        assert answers == sorted(answers) and len(set(answers)) > 2
