"""Energy of a simulation by hand: hours times watts, hosts, hours of the day."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.energy import pool_energy
from simulation.engine.run import simulate
from simulation.metrics import summarise
from simulation.performance.power import PowerAtLoad
from simulation.policies.static import Static
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.performance import test_power

AT_LOAD = PowerAtLoad(test_power.MODEL, test_power.GPU, test_power.power().graphs)
ONE = profile(alpha=1.0, beta=0.0, gamma=2.0, delta=0.0, kv=4000, max_batch=4, budget=1000)


def run(pools, arrivals=(0.0,), duration_s=3600.0, **kwargs):
    trace_ = trace(list(arrivals), [10] * len(arrivals), [9] * len(arrivals))
    return simulate(
        replace(trace_, **kwargs), fleet(*pools), Static([1] * len(pools)), duration_s=duration_s
    )


def test_hosts_draw_all_the_time_and_are_shown_apart():
    bare, housed = (run([replace(pool(ONE), host_w=w)]) for w in (0.0, 50.0))
    without, with_host = summarise(bare), summarise(housed)
    assert with_host.host_energy_kwh == pytest.approx(50 * 1.25 / 1000)  # one hour, one GPU
    assert with_host.energy_kwh == pytest.approx(without.energy_kwh + 50 * 1.25 / 1000)
    assert without.host_energy_kwh == 0.0
    assert with_host.carbon_kg == pytest.approx(0.4 * with_host.energy_kwh)


def test_power_at_load_is_that_of_the_mean_iteration():
    # One request: a prefill of 2 s and 8 decodes of 1 s: 9 iterations in 10 s, 10 prompt tokens,
    # and 9 tokens given, which attend to 10 + 9 / 2 tokens.
    result = run([replace(pool(ONE), power=AT_LOAD)])
    watts = float(AT_LOAD.watts(10 / 9, 1.0, 14.5, 10 / 9, 50 / 9))
    assert pool_energy(result, 0).busy_w == pytest.approx(watts)
    joules = 3590 * 100.0 + 10 * watts  # idle power is the pool's GPU's
    assert summarise(result).energy_kwh == pytest.approx(1.25 * joules / 3.6e6)


def test_peak_power_is_the_highest_interval_of_all_pools_of_a_region():
    result = run([pool(ONE), replace(pool(ONE), host_w=50.0)], arrivals=(0.0, 100.0, 119.0))
    watts = sum(pool_energy(result, p).watts for p in range(2))
    assert summarise(result).peak_kw == {"r": pytest.approx(float(watts.max()) / 1000)}
    assert summarise(result).peak_kw["r"] > 2 * 1.25 * 100 / 1000  # more than idle


def test_a_fuller_batch_draws_more_and_spends_less_per_token():
    # Iterations as long as a GPU needs for them: seconds of gaps would draw idle power whatever
    # the batch.
    quick = profile(alpha=0.01, beta=0.0, gamma=0.02, delta=0.0, kv=4000, max_batch=4, budget=1000)
    alone = run([replace(pool(quick), power=AT_LOAD)])
    four = run([replace(pool(quick), power=AT_LOAD)], arrivals=(0.0, 0.0, 0.0, 0.0))
    assert pool_energy(four, 0).busy_w > pool_energy(alone, 0).busy_w
    assert four.series.output_tokens.sum() == 4 * alone.series.output_tokens.sum()
    busy = [float((r.totals.prefill_s + r.totals.decode_s)[0]) for r in (alone, four)]
    assert pool_energy(four, 0).busy_w * busy[1] / 4 < pool_energy(alone, 0).busy_w * busy[0]


def test_energy_by_interval_adds_up_also_when_the_last_is_short():
    result = run([pool(ONE)], arrivals=(0.0, 100.0, 119.0), duration_s=150.0)
    energy = pool_energy(result, 0)
    t = result.totals
    joules = t.idle_s * 100.0 + t.starting_s * 100.0 + t.prefill_s * 600.0 + t.decode_s * 400.0
    assert energy.gpu_kwh.sum() == pytest.approx(1.25 * float(joules[0]) / 3.6e6)


def test_carbon_by_hour_of_the_day():
    # Two idle hours from 23:00 UTC on: 100 W x 1.25 each at 240 and at 10 g/kWh.
    rates = np.arange(24.0)
    rates[[23, 0]] = 240.0, 10.0
    served = fleet(pool(ONE))
    region = replace(served.regions[0], carbon_hourly_g_per_kwh=tuple(rates))
    start = replace(trace([7199.9], [10], [1]), start_s=23 * 3600.0)
    result = simulate(start, replace(served, regions=(region,)), Static([1]), duration_s=7200.0)
    energy = pool_energy(result, 0)
    by_hour = energy.gpu_kwh.reshape(2, -1).sum(axis=1)
    assert by_hour[0] == pytest.approx(0.125)
    grams = by_hour[0] * 240 + by_hour[1] * 10 + energy.after_kwh * rates[1]
    assert energy.after_kwh > 0
    assert energy.carbon_kg == pytest.approx(grams / 1000)
