"""Signals that never move are known: how far each swung, and what it asked for."""

import numpy as np
import pytest

from simulation.policies.hpa import Hpa
from simulation.policies.proportional import Proportional
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.static import Static
from simulation.policies.wrappers.capacity_limit import CapacityLimit
from simulation.policies.wrappers.signal_range import SignalRecorder
from tests.simulation.builders import fleet, pool
from tests.simulation.policies.observations import seen


def metered(policy, *looks):
    meter = SignalRecorder(policy)
    meter.reset(fleet(pool(initial=4)))
    for look in looks:
        meter.decide(look)
    return meter.signal_range


def test_memory_that_never_fills_is_known():
    looks = [seen(15.0 * i, 4, utilisation=0.002 * i) for i in range(1, 11)]
    signal = metered(UnifiedReactive(), *looks)
    assert (signal.low, signal.high) == (0.002, 0.02) and signal.share
    assert (signal.out_above, signal.in_below) == (0.7, 0.3)
    assert signal.asked_fewer and not signal.asked_more


def test_gpus_that_are_always_busy_are_known():
    looks = [seen(60.0 * i, 4, busy=1.0) for i in range(1, 5)]
    signal = metered(Proportional("decode-gpu", 0.98), *looks)
    assert (signal.low, signal.high) == (1.0, 1.0)
    assert not signal.asked_more and not signal.asked_fewer


def test_a_signal_that_moves_asks_for_both():
    looks = [seen(15.0, 4, waiting=80), seen(30.0, 4, waiting=0)]
    signal = metered(CapacityLimit(Hpa(metric="queue", target=5.0), []), *looks)
    assert signal.asked_more and signal.asked_fewer and (signal.low, signal.high) == (0.0, 20.0)
    assert signal.out_above == pytest.approx(5.5)


def test_nothing_is_read_where_nothing_runs_and_a_fresh_start_forgets():
    assert metered(UnifiedReactive(), seen(15.0, 0, waiting=3, utilisation=1.0)) is None
    assert metered(Static([4]), seen(15.0, 4, utilisation=0.9)) is None
    meter = SignalRecorder(UnifiedReactive())
    meter.reset(fleet(pool(initial=4)))
    meter.decide(seen(15.0, 4, utilisation=0.9))
    meter.reset(fleet(pool(initial=4)))
    assert meter.signal_range is None


def test_each_pool_has_its_own_target():
    policy = SignalRecorder(Hpa(metric="queue", target=[5.0, 50.0]))
    policy.reset(fleet(pool(initial=4), pool(initial=4)))
    policy.decide(seen(15.0, [4, 4], waiting=[0, 160]))  # 40 an instance of the second: below 50
    assert not policy.signal_range.asked_more and policy.signal_range.high == 40.0
    assert np.isclose(policy.signal_range.out_above, 5.5)
