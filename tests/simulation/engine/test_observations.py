"""What policies see of a running fleet, against what the result says happened."""

import numpy as np
import pytest

from simulation.engine.compiled_observation import KV_SHARE
from simulation.engine.run import simulate
from simulation.fleet import KvLink, Tier
from simulation.policies.static import Static
from simulation.policies.wrappers.observation_log import ObservationLog
from simulation.policy import LATENCY_BOUNDS_S
from tests.simulation.builders import fleet, pool, profile, trace

BIG = profile(kv=100_000, budget=256)


def replay(served, requests, counts, signals=True, interval_s=10.0, **how):
    policy = ObservationLog(Static(counts, interval_s=interval_s), signals=signals)
    return simulate(requests, served, policy, **how), policy.seen


@pytest.fixture(scope="module")
def busy():
    """Poisson arrivals on three instances, and no request after minute two."""
    rng = np.random.default_rng(3)
    arrival = np.sort(rng.uniform(0, 120, 600))
    sizes = rng.integers(10, 200, (2, 600))
    requests = trace(arrival, sizes[0], sizes[1] // 4 + 1)
    return replay(fleet(pool(BIG, initial=3)), requests, [3], duration_s=300.0)


def test_signals_only_where_asked_for():
    requests = trace([0.0], 10, 5)
    _, seen = replay(fleet(), requests, [1], signals=False, duration_s=60.0)
    assert len(seen) == 5 and all(observation.signals is None for observation in seen)


def test_rates_add_up_to_the_tokens_of_the_trace(busy):
    result, seen = busy
    prefill, decode = (
        sum(float(getattr(observation.signals, name).sum()) * 10.0 for observation in seen)
        for name in ("prefill_tps", "decode_tps")
    )
    assert prefill == pytest.approx(result.trace.input_tokens.sum(), rel=1e-9)
    assert decode == pytest.approx(result.trace.output_tokens.sum(), rel=1e-9)


def test_latencies_are_counted_once_and_in_their_buckets(busy):
    result, seen = busy
    for name, scale, latency in (
        ("ttft_counts", 1.0, result.requests.ttft_s),
        ("tbt_counts", 0.1, result.requests.tbt_s),
    ):
        counts = np.sum([getattr(look, name)[0] for look in seen], axis=0)
        edges = [0.0, *LATENCY_BOUNDS_S * scale, np.inf]
        known = latency[~np.isnan(latency)]
        assert counts.tolist() == np.histogram(np.nextafter(known, 0), edges)[0].tolist()


def test_instances_together_give_the_readings_of_the_pool(busy):
    _, seen = busy
    for look in seen:
        # The fullest instance is at least as full as the mean.
        assert look.fullest[0] >= look.utilisation[0] - 1e-12
        assert look.saturation[0] >= look.utilisation[0] / KV_SHARE - 1e-9
        assert look.backlog[0] >= 0 and look.longest[0] >= 0
    assert seen[-1].backlog[0] == seen[-1].saturation[0] == 0
    assert max(look.backlog[0] for look in seen) > 0


def test_busy_time_adds_up_to_the_hours_counted(busy):
    result, seen = busy
    busy_s = sum(float(observation.signals.busy[0]) * 3 * 10.0 for observation in seen)
    totals = result.totals
    assert busy_s == pytest.approx(float((totals.prefill_s + totals.decode_s)[0]), rel=1e-9)
    for observation in seen:
        assert 0 <= observation.signals.sm_activity[0] <= observation.signals.busy[0] <= 1


def test_mean_latencies_are_those_of_the_requests(busy):
    result, seen = busy
    first = result.requests.first_token_s
    for observation in seen[:3]:
        inside = (first > observation.time_s - 10.0) & (first <= observation.time_s)
        assert observation.signals.ttft_s[0] == pytest.approx(result.requests.ttft_s[inside].mean())


def test_nothing_measured_is_nan_and_rates_are_zero(busy):
    last = busy[1][-1].signals
    assert np.isnan(last.ttft_s).all() and np.isnan(last.tbt_s).all()
    assert last.prefill_tps[0] == last.decode_tps[0] == last.busy[0] == last.batch[0] == 0
    _, seen = replay(fleet(pool(initial=0)), trace([0.0], 8, 2), [0], duration_s=30.0)
    assert np.isnan(seen[0].signals.busy[0]) and seen[0].waiting[0] == 1


def test_looking_changes_nothing(busy):
    result, _ = busy
    again, _ = replay(result.fleet, result.trace, [3], signals=False, duration_s=300.0)
    for name in ("first_token_s", "last_token_s", "outcome"):
        np.testing.assert_array_equal(getattr(again.requests, name), getattr(result.requests, name))
    np.testing.assert_allclose(again.totals.idle_s, result.totals.idle_s)


def test_roles_show_their_own_work():
    link = KvLink(1.0, 1e9)
    pd_fleet = fleet(pool(BIG, role="prefill", link=link), pool(BIG, role="decode"))
    _, seen = replay(pd_fleet, trace(np.arange(5.0), 100, 30), [1, 1], duration_s=60.0)
    prefill = sum(observation.signals.prefill_tps for observation in seen) * 10
    decode = sum(observation.signals.decode_tps for observation in seen) * 10
    assert prefill.tolist() == [500, 0]
    assert decode.tolist() == [5, 145]  # the first token comes where the prompt was


def test_deferred_requests_show_at_the_pools_that_may_take_them():
    tiers = (Tier("t"), Tier("batch", deferrable=True))
    requests = trace([0.0, 0.0, 0.0], 8, 2, tier=[0, 1, 1], tiers=("t", "batch"))
    tiered = fleet(pool(initial=0, tiers=("t",)), pool(initial=0), tiers=tiers)
    _, seen = replay(tiered, requests, [0, 0], duration_s=30.0)
    assert seen[0].deferred.tolist() == [0, 2]
