"""Policies in the engine: steady under a steady load, and what they ask for is carried out."""

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.fleet import KvLink, Tier
from simulation.policies.feedback import Feedback
from simulation.policies.guarded_plan import GuardedPlan
from simulation.policies.hpa import Hpa
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.parts.stability import Stability
from simulation.policies.proportional import Proportional
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.static import Static
from simulation.policies.utilization_gated import UtilizationGated
from simulation.policies.wrappers.observation_log import ObservationLog
from simulation.policies.wrappers.safety_layer import SafetyLayer
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.scripted_policies import Asking, asked_each_time

CHAT = Tier("t", ttft_s=2.0, tbt_s=0.2)
FAST = profile(kv=20_000, budget=256, max_batch=16)


def load(rate, seconds, seed=5, isl=100, osl=20):
    rng = np.random.default_rng(seed)
    n = int(rate * seconds)
    return trace(np.sort(rng.uniform(0, seconds, n)), isl, osl)


def split(prefill=3, decode=3):
    return fleet(
        pool(FAST, role="prefill", link=KvLink(1.0, 1e9), initial=prefill),
        pool(FAST, role="decode", initial=decode),
        tiers=[CHAT],
    )


@pytest.mark.parametrize(
    "policy",
    [
        Proportional("decode-tps", 80.0),
        Proportional("prefill-tps", 400.0),
        SafetyLayer(Proportional("decode-tps", 80.0), (Feedback("ttft"), Feedback("tbt"))),
        Hpa(target=0.05),
    ],
    ids=lambda policy: policy.name,
)
def test_steady_load_settles(policy):
    """20 requests/s: 400 output tokens and 2,000 prompt tokens a second."""
    seen = ObservationLog(policy)
    served = fleet(pool(FAST, initial=2), tiers=[CHAT])
    simulate(load(20.0, 3600.0), served, seen, duration_s=3600.0)
    counts = [int((look.ready + look.starting)[0]) for look in seen.seen]
    late = counts[len(counts) // 2 :]
    assert max(late) - min(late) <= 2
    assert np.count_nonzero(np.diff(late)) <= 4, counts


def test_split_pools_follow_a_rising_load_together():
    requests = load(10.0, 1800.0), load(40.0, 1800.0)
    both = trace(np.concatenate([requests[0].arrival_s, 1800.0 + requests[1].arrival_s]), 100, 20)
    seen = ObservationLog(Proportional("decode-tps", 50.0))
    simulate(both, split(), seen, duration_s=3600.0)
    counts = np.array([look.ready + look.starting for look in seen.seen])
    assert counts[-1].min() > 2 * counts[25].min()  # four times the load
    assert np.abs(counts[:, 0] - counts[:, 1]).max() <= 1  # one to one, as it began


def test_the_largest_batch_that_is_asked_for_is_kept():
    served = fleet(pool(FAST, initial=1), tiers=[CHAT])
    shown = {}
    for most in (2, 16):
        seen = ObservationLog(Asking([1], {"targets": [1], "max_batch": [most]}, every=10.0))
        simulate(load(5.0, 300.0), served, seen, duration_s=300.0)
        shown[most] = max(float(look.signals.batch[0]) for look in seen.seen[2:])
    assert shown[2] <= 2 + 1e-9 < shown[16]


def test_soft_scale_in_spares_starts_after_a_dip():
    """Ten minutes of load, one of next to none, ten of load."""
    parts = [load(20.0, 600.0), load(20.0, 600.0, seed=6)]
    dip = trace(np.concatenate([parts[0].arrival_s, 720.0 + parts[1].arrival_s]), 100, 20)
    wasted = {}
    for soft_s in (0.0, 300.0):
        how = Stability(cool_out_s=0.0, cool_in_s=0.0, soft_s=soft_s)
        policy = Proportional("decode-tps", 80.0, stability=how, interval_s=30.0)
        served = fleet(pool(FAST, initial=5, startup_s=60.0), tiers=[CHAT])
        result = simulate(dip, served, policy, duration_s=1320.0)
        wasted[soft_s] = float(result.totals.starting_s.sum())
    assert wasted[300.0] < wasted[0.0]


def test_signals_cost_nothing_to_a_policy_that_does_not_look():
    seen = ObservationLog(Static([1]), signals=False)
    simulate(load(1.0, 60.0), fleet(), seen, duration_s=120.0)
    assert all(look.signals is None for look in seen.seen)


GATED = [0.0, 600.0, 1500.0, 2400.0], [[2], [5], [1], [3]]


@pytest.mark.parametrize("pools", [1, 2])
@pytest.mark.parametrize(
    ("rule", "how"),
    [
        (UnifiedReactive, {}),
        (UnifiedReactive, {"scale_out_above": 0.5, "scale_in_below": 0.2, "cooldown_s": 60.0}),
        (UtilizationGated, {}),
        (UtilizationGated, {"scale_out_above": 0.2, "scale_in_below": 0.1}),
    ],
    ids=["reactive", "cooldown", "gated", "gated early"],
)
def test_a_rule_between_its_thresholds_acts_as_if_asked_each_time(rule, how, pools):
    parts = [load(rate, 900.0, seed=i).arrival_s for i, rate in enumerate((5.0, 60.0, 8.0, 30.0))]
    arrivals = np.concatenate([900.0 * i + part for i, part in enumerate(parts)])
    served = fleet(*[pool(FAST, initial=1, startup_s=45.0)] * pools, tiers=[CHAT])
    times_s, counts = GATED
    plan = [FixedSchedule(times_s, np.repeat(counts, pools, axis=1))]
    each, few = (
        simulate(trace(arrivals, 100, 20), served, made(*plan * (rule is UtilizationGated), **how))
        for made in (asked_each_time(rule), rule)
    )
    assert np.array_equal(each.series.ready, few.series.ready)
    assert np.array_equal(each.series.starting, few.series.starting)
    assert np.array_equal(each.requests.e2e_s, few.requests.e2e_s, equal_nan=True)
    assert np.ptp(each.series.ready) > 0  # the rule acted


def test_a_rule_is_not_asked_while_nothing_passes_a_threshold():
    class Counted(UnifiedReactive):
        calls = 0

        def decide(self, observation):
            self.calls += 1
            return super().decide(observation)

        def hold(self, time_s):
            return super().hold(time_s)

    rule = Counted(scale_out_above=0.99, scale_in_below=0.0)
    simulate(load(5.0, 3600.0), fleet(pool(FAST, initial=2), tiers=[CHAT]), rule)
    assert rule.calls < 3600.0 / rule.interval_s / 2


def test_a_recorded_static_fleet_tells_whether_a_guard_would_act():
    served = fleet(pool(FAST, initial=3, startup_s=30.0), tiers=[CHAT])
    schedule, acted = FixedSchedule([0.0], [[3]]), []
    for rate in (2.0, 6.0, 12.0, 18.0, 30.0, 60.0):
        requests = load(rate, 1800.0)
        recorder = GuardedPlan(schedule, np.inf, np.inf, np.inf, recorded=120)
        still = simulate(requests, served, recorder, duration_s=1800.0)
        rule = GuardedPlan(schedule, prefill_tps=600.0, decode_tps=120.0, in_flight=16.0)
        guarded = simulate(requests, served, rule, duration_s=1800.0)
        acted.append(bool(guarded.series.ready.max() > 3.1))
        assert still.series.ready[0] == pytest.approx(3.0)
        assert rule.never_acts(served, recorder.recorded_observations) != acted[-1]
        if not acted[-1]:
            assert np.array_equal(still.requests.e2e_s, guarded.requests.e2e_s, equal_nan=True)
    assert acted == sorted(acted) and set(acted) == {False, True}
