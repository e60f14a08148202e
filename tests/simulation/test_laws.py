"""Closed forms, conservation and monotonicity of whole simulations."""

import numpy as np
import pytest
from numba.core.dispatcher import Dispatcher

from bench.fidelity import mmc_wait_quantile
from simulation import invariants
from simulation.engine import entry_points
from simulation.engine.compilation import warm_up
from simulation.engine.run import simulate
from simulation.engine.state import INSTANCE, POOL
from simulation.errors import InvariantViolated
from simulation.fleet import Routing, Tier
from simulation.metrics import meets_slo
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.static import Static
from simulation.sizing.queueing import mmc_mean_wait
from tests.simulation.builders import fleet, pool, profile, trace


def poisson(rate, n, seed=0):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n))


def single_server(gamma, delta):
    """One request at a time, one iteration each: a plain queue."""
    return profile(
        alpha=0.0, beta=0.0, gamma=gamma, delta=delta, max_batch=1, budget=10**7, kv=10**7
    )


def test_deterministic_service_waits_as_m_d_1():
    rate, service = 0.7, 1.0
    n = 200_000
    arrivals = poisson(rate, n)
    result = simulate(trace(arrivals, 1, 1), fleet(pool(single_server(1.0, 0.0))), Static([1]))
    wait = result.requests.ttft_s - service
    load = rate * service
    assert wait.mean() == pytest.approx(load * service / (2 * (1 - load)), rel=0.03)
    # The busy share of the server is the load.
    busy = result.totals.prefill_s[0] / result.duration_s
    assert busy == pytest.approx(load, rel=0.02)


def test_exponential_service_waits_as_m_m_1():
    rate, n = 0.7, 400_000
    isl = np.maximum(np.random.default_rng(1).exponential(10_000, n).astype(int), 1)
    result = simulate(
        trace(poisson(rate, n), isl, 1), fleet(pool(single_server(0.0, 1e-4))), Static([1])
    )
    wait = result.requests.ttft_s - isl * 1e-4
    assert wait.mean() == pytest.approx(mmc_mean_wait(1, rate, 1.0), rel=0.04)
    for p in (0.5, 0.9):
        assert np.quantile(wait, p) == pytest.approx(mmc_wait_quantile(1, rate, 1.0, p), rel=0.05)


def test_littles_law_on_the_waiting_line():
    """Mean waiting, sampled by the series every second, is the rate times the mean wait."""
    rate, n = 0.7, 100_000
    arrivals = poisson(rate, n, seed=3)
    result = simulate(
        trace(arrivals, 1, 1), fleet(pool(single_server(1.0, 0.0))), Static([1]), interval_s=0.997
    )
    wait = result.requests.ttft_s - 1.0
    effective = n / result.duration_s
    assert result.series.waiting.mean() == pytest.approx(effective * wait.mean(), rel=0.02)


def busy_day(n=20_000, seed=5):
    rng = np.random.default_rng(seed)
    isl = np.clip(rng.lognormal(5, 1, n), 1, 700).astype(int)
    osl = np.clip(rng.lognormal(4, 1, n), 1, 300).astype(int)
    return trace(
        poisson(12.0, n, seed),
        isl,
        osl,
        tier=rng.integers(0, 2, n),
        tiers=("fast", "niw"),
        region=rng.integers(0, 2, n),
        regions=("a", "b"),
    )


def busy_fleet(kv=4000, **kwargs):
    prof = profile(kv=kv, max_batch=32, budget=256)
    return fleet(
        pool(prof, region="a", initial=3, minimum=1, startup_s=45.0, **kwargs),
        pool(prof, region="b", initial=3, minimum=1, startup_s=45.0, **kwargs),
        tiers=[
            Tier("fast", ttft_s=1.0, tbt_s=0.08),
            Tier("niw", e2e_s=3600.0, deferrable=True, priority_after_s=300.0),
        ],
        regions=("a", "b"),
        latency=[[0, 0.03], [0.03, 0]],
    )


def test_tokens_of_the_series_are_those_of_the_requests():
    day = busy_day()
    result = simulate(day, busy_fleet(kv=2000), Static([5, 5]), duration_s=4 * 3600.0)
    assert (result.requests.outcome == 0).all()
    assert result.series.output_tokens.sum() == day.output_tokens.sum()
    # Preempted prompts are prefilled again.
    assert result.totals.preemptions.sum() > 0
    assert result.series.input_tokens.sum() > day.input_tokens.sum()


def test_more_flat_instances_never_lower_attainment():
    shares = [
        meets_slo(simulate(busy_day(5000), busy_fleet(), Static([c, c]))).mean()
        for c in (1, 2, 4, 6, 8, 12, 16)
    ]
    # Which requests share an iteration is chance: one or two more may be late.
    assert min(np.diff(shares)) >= -2 / 5000
    assert shares[0] < 0.6 < 0.99 < shares[-1]


def test_hours_do_not_depend_on_the_width_of_the_series():
    wide = simulate(busy_day(), busy_fleet(), UnifiedReactive(), duration_s=1500, interval_s=1500)
    fine = simulate(busy_day(), busy_fleet(), UnifiedReactive(), duration_s=1500, interval_s=7)
    np.testing.assert_array_equal(wide.requests.last_token_s, fine.requests.last_token_s)
    for name in ("starting_s", "idle_s", "prefill_s", "decode_s"):
        np.testing.assert_allclose(
            getattr(wide.totals, name), getattr(fine.totals, name), rtol=1e-9
        )
    widths = np.diff(np.append(np.arange(0, 1500, 7), 1500))
    held = (fine.series.utilisation * fine.series.ready) @ widths / 1500
    np.testing.assert_allclose(held, (wide.series.utilisation * wide.series.ready)[:, 0])
    np.testing.assert_allclose(
        fine.series.output_tokens.sum(axis=1), wide.series.output_tokens.sum(axis=1)
    )


ENTRY_POINTS = {
    name: kernel
    for name, kernel in vars(entry_points).items()
    if isinstance(kernel, Dispatcher) and kernel.__module__ == entry_points.__name__
}


def test_warm_up_calls_every_entry_point(monkeypatch):
    """Otherwise the first run of a user compiles for half a minute."""
    called = set()
    for name, kernel in ENTRY_POINTS.items():

        def recorded(*arguments, name=name, kernel=kernel):
            called.add(name)
            return kernel(*arguments)

        monkeypatch.setattr(entry_points, name, recorded)
    warm_up()
    assert called == set(ENTRY_POINTS) >= {"advance"}


def test_every_call_uses_the_one_compiled_signature():
    """A second signature would cost a user half a minute of compilation mid-run."""
    warm_up()
    simulate(busy_day(100), busy_fleet(), UnifiedReactive(interval_s=15), interval_s=60)
    turned = busy_fleet()
    object.__setattr__(turned, "latency_s", np.asfortranarray(turned.latency_s))
    simulate(busy_day(100), turned, Static([2, 2], interval_s=60), duration_s=600, interval_s=60)
    assert {len(kernel.signatures) for kernel in ENTRY_POINTS.values()} == {1}


def test_replay_does_not_depend_on_how_pools_and_ties_are_numbered():
    """Two pools of a kind, routed together, serve as one of both does, in either order; and of
    equal requests that arrive at one instant it does not matter which comes first."""
    prof, day = profile(kv=3000), busy_day(4000)
    day = trace(day.arrival_s, day.input_tokens, day.output_tokens)
    apart, both = simulate(day, fleet(pool(prof)), Static([5])), Routing(endpoint="together")
    for counts in ([2, 3], [4, 1]):
        split = simulate(day, fleet(pool(prof), pool(prof), routing=both), Static(counts))
        np.testing.assert_array_equal(split.requests.last_token_s, apart.requests.last_token_s)
    rng = np.random.default_rng(1)
    arrival = np.repeat(np.arange(200) / 4, 6)
    regions = rng.integers(2, size=len(arrival))
    ended = []
    for _ in range(3):
        order = np.lexsort((rng.random(len(arrival)), arrival))
        requests = trace(arrival, 40, 12, region=regions[order], regions=("a", "b"))
        pools = (pool(prof, region="a"), pool(prof, region="b"))
        result = simulate(requests, fleet(*pools, regions=("a", "b")), Static([2, 2]))
        ended.append(np.sort(result.requests.last_token_s))
    np.testing.assert_array_equal(ended[0], ended[1])
    np.testing.assert_array_equal(ended[0], ended[2])


def tampered(result, part, name, change):
    values = np.array(getattr(getattr(result, part), name))
    change(values)
    object.__setattr__(getattr(result, part), name, values)
    return result


@pytest.mark.parametrize(
    ("part", "name", "change", "law"),
    [
        ("requests", "outcome", lambda v: v.__setitem__(0, 2), "last token"),
        ("requests", "outcome", lambda v: v.__setitem__(0, 1), "rejection without reason"),
        ("requests", "ttft_s", lambda v: v.__setitem__(0, -1.0), "before its arrival"),
        ("requests", "last_token_s", lambda v: v.__setitem__(0, 0.0), "before the first"),
        ("requests", "pool", lambda v: v.__setitem__(0, -1), "nowhere"),
        ("totals", "idle_s", lambda v: v.__iadd__(1.0), "idle"),
        ("totals", "starting_s", lambda v: v.__iadd__(1.0), "starting"),
        ("totals", "donated_s", lambda v: v.__iadd__(1.0), "donated"),
        ("series", "busy", lambda v: v.__imul__(1.5), "busy"),
        ("series", "utilisation", lambda v: v.__iadd__(1.0), "more KV"),
    ],
)
def test_broken_laws_are_noticed(part, name, change, law):
    result = simulate(busy_day(500), busy_fleet(), UnifiedReactive())
    invariants.check_invariants(result)
    with pytest.raises(InvariantViolated, match=law):
        invariants.check_invariants(tampered(result, part, name, change))


@pytest.mark.parametrize(
    ("name", "value", "law"),
    [("kv_peak", 101, "memory"), ("too_early", 1, "not ready"), ("lifetime_s", 9.0, "lifetimes")],
)
def test_broken_laws_inside_the_engine_are_noticed(name, value, law):
    pools = np.zeros(1, POOL)
    pools["kv_capacity_tokens"] = 100
    idle = np.zeros(2, INSTANCE)
    invariants.check_state(pools, idle, 0)
    pools[name] = value
    with pytest.raises(InvariantViolated, match=law):
        invariants.check_state(pools, idle, 0)


def test_memory_left_behind_is_noticed():
    pools, instances = np.zeros(1, POOL), np.zeros(2, INSTANCE)
    instances["kv_tokens"][1] = 7
    invariants.check_state(pools, instances, open_requests=1)
    with pytest.raises(InvariantViolated, match="left with kv"):
        invariants.check_state(pools, instances, open_requests=0)
