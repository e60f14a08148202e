"""llm-d's signals and control law, in closed form."""

from math import ceil, floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.errors import SimulationError
from simulation.fleet import KvLink
from simulation.policies.endpoint_picker import (
    EndpointPicker,
    idle_prefill_tps,
    quantile,
    replicas_by_latency,
    replicas_guarded,
)
from simulation.policies.parts.hpa_behaviour import DirectionLimits, HpaBehaviour
from simulation.policy import LATENCY_BOUNDS_S
from simulation.policy_check import check
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observations import seen

FREE = DirectionLimits(1e4, 0, 15, 0)  # no limit that these cases reach
BUCKETS = len(LATENCY_BOUNDS_S) + 1


def picker(signal, initial=4, **how):
    policy = EndpointPicker(signal, **{"up": FREE, "down": DirectionLimits(100, 0, 15, 0), **how})
    policy.reset(fleet(pool(initial=initial)))
    return policy


def counts(**by_bound):
    """One pool's histogram: ``b0_4=3`` are three in the bucket that ends at 0.4 s."""
    out = np.zeros((1, BUCKETS), np.int64)
    for name, count in by_bound.items():
        out[0, list(LATENCY_BOUNDS_S).index(float(name[1:].replace("_", ".")))] = count
    return out


@given(
    st.floats(0, 2), st.integers(1, 50), st.integers(0, 50), st.floats(0.3, 1.0), st.floats(0, 0.9)
)
def test_the_control_law_is_the_published_one(s, n, r, up, share):
    r, down = min(r, n), max(up * share, 0.01)
    credit = r / n if 0 < r < n else 1.0
    if s > up:
        expected = n + ceil(round(n * (s * credit / up - 1), 9))
    elif s < down:
        expected = n - floor(round(n * (1 - s / down), 9))
    else:
        expected = n
    law = replicas_by_latency(np.array([s]), np.array([n]), np.array([r]), up, down)
    assert law.tolist() == [expected]


def test_the_step_in_has_no_credit():
    ready, present = np.array([2]), np.array([10])
    assert replicas_by_latency(np.array([0.5]), present, ready, 0.55, 0.4).tolist() == [10]
    assert replicas_by_latency(np.array([1.1]), present, ready, 0.55, 0.4).tolist() == [4]


def test_quantiles_are_those_of_prometheus():
    # 10 in (0.2, 0.4] and 10 in (0.4, 0.6]: the 18th of 20 is 8/10 into the second bucket.
    assert quantile(counts(b0_4=10, b0_6=10), LATENCY_BOUNDS_S) == pytest.approx([0.56])
    assert quantile(counts(b0_005=10), LATENCY_BOUNDS_S) == pytest.approx([0.0045])
    beyond = np.zeros((1, BUCKETS), np.int64)
    beyond[0, -1] = 3  # in the open bucket: its lower bound
    assert quantile(beyond, LATENCY_BOUNDS_S).tolist() == [LATENCY_BOUNDS_S[-1]]
    assert np.isnan(quantile(np.zeros((1, BUCKETS), np.int64), LATENCY_BOUNDS_S)).all()


def test_the_latency_signal_is_clamped_averaged_and_zero_without_traffic():
    policy = picker("latency", 10, ttft_s=0.5, tbt_s=1.0)
    late = counts(b10=10)  # P90 of 9.8 s: 19.6 times the limit, clamped at 2
    first = policy.decide(seen(15.0, 10, ttft_counts=late, tbt_counts=0 * late))
    assert first.tolist() == [10 + ceil(10 * (2 / 0.55 - 1))]
    # A minute of rates: the burst counts until the fifth evaluation, then 45 s of means.
    idle = [
        policy.decide(seen(30.0 + 15 * i, 10, ttft_counts=0 * late, tbt_counts=0 * late))
        for i in range(7)
    ]
    assert idle[2].tolist() == first.tolist() and idle[-1].tolist() == [1]


def test_queue_and_running_requests_race():
    # 4 replicas hold 20 of 26 that wait: 6 are at the picker, 1 per replica.
    assert picker("queue").decide(seen(15.0, 4, waiting=26, batch=0.0)).tolist() == [6]
    # 4 run 30 each: 120 requests over 16 are 8 replicas.
    assert picker("queue").decide(seen(15.0, 4, batch=30.0)).tolist() == [8]


@given(st.floats(0, 50), st.integers(1, 20), st.integers(0, 20))
def test_the_guard_is_the_published_one(demand, replicas, ready):
    pending = replicas - min(ready, replicas)
    expected = demand if demand <= replicas else max(demand - pending, replicas)
    asked = replicas_guarded(
        np.array([demand]), np.array([replicas]), np.array([replicas - pending])
    )
    assert asked.tolist() == [expected]


def test_the_guard_counts_starting_replicas_as_help_to_come():
    # 4 of 8 are ready and run 40 each: 160 over 16 are 10, less 4 that start, at least 8.
    look = seen(15.0, 4, starting=4, batch=40.0)
    assert picker("queue", 8).decide(look).tolist() == [10]
    assert picker("queue-guard", 8).decide(look).tolist() == [8]
    # 26 wait, 6 of them at the picker: 6 replicas. None starts, so all are requested.
    assert picker("queue-guard").decide(seen(15.0, 4, waiting=26, batch=0.0)).tolist() == [6]


def test_saturation_alone_never_asks_for_more_than_its_share_of_the_target():
    full = seen(15.0, 4, saturation=1.4, batch=0.0)
    assert picker("saturation").decide(full).tolist() == [2]
    assert picker("saturation").decide(seen(15.0, 4, saturation=1.4, batch=40)).tolist() == [10]


def test_token_backlog_is_in_seconds_of_prefill():
    asked = picker("tokens", prefill_tps=1000.0).decide(seen(15.0, 4, backlog=9000.0))
    assert asked.tolist() == [6]  # 9 s over 1.5 s
    busy = seen(15.0, 4, utilisation=1.0)
    assert picker("tokens").decide(busy).tolist() == [5]  # 4 replicas' worth over 0.8
    profile = pool().profile
    assert idle_prefill_tps(profile) > 0


def test_roles_have_their_own_token_trigger():
    policy = EndpointPicker("tokens", prefill_tps=1000.0, up=FREE, down=FREE)
    policy.reset(
        fleet(
            pool(initial=4, role="prefill", link=KvLink(1e5, 1e9)), pool(initial=4, role="decode")
        )
    )
    look = seen(15.0, [4, 4], backlog=9000.0, utilisation=1.0)
    assert policy.decide(look).tolist() == [6, 5]


def test_the_gauge_has_a_value_for_each_pool():
    policy = EndpointPicker("inflight", up=FREE, down=FREE)
    policy.reset(fleet(pool(initial=4), pool(initial=2, model="n")))
    assert policy.gauge(seen(15.0, [4, 2], batch=[30.0, 10.0])).values.tolist() == [30.0, 10.0]


def test_behaviour_limits_steps_per_period_and_waits():
    up, down = DirectionLimits(100, 4, 60, 30), DirectionLimits(0, 1, 120, 180)
    behaviour = HpaBehaviour(up, down, np.array([3]))
    # The window upwards takes the least of 30 s, which begins with the initial 3.
    asked = {t: behaviour.limited_replicas(0, t, 3, 20) for t in (15.0, 30.0, 45.0)}
    assert asked == {15.0: 3, 30.0: 3, 45.0: 7}  # 100% of 3 or 4 more per minute
    assert (
        behaviour.limited_replicas(0, 60.0, 7, 20) == 7
        and behaviour.limited_replicas(0, 105.0, 7, 20) == 14
    )
    steps, now = [], 14
    for t in np.arange(120.0, 700.0, 15.0):
        now = behaviour.limited_replicas(0, float(t), now, 1)
        steps.append(now)
    assert steps[:11] == [14] * 11 and min(np.diff(steps)) == -1  # three minutes, one at a time
    assert steps[-1] == 14 - len(np.arange(300.0, 700.0, 120.0))


def test_the_latency_signal_needs_a_limit():
    with pytest.raises(SimulationError, match="needs a tier"):
        EndpointPicker("latency").reset(fleet(pool()))


@pytest.mark.parametrize("signal", ["queue", "queue-guard", "saturation", "tokens", "latency"])
def test_it_keeps_the_protocol(signal):
    check(lambda: EndpointPicker(signal, ttft_s=1.0, tbt_s=0.1))
