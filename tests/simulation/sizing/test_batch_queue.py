"""The batch-service queue: closed forms, both ends of the load, and the simulator between them."""

import numpy as np
import pytest

from simulation.errors import SimulationError
from simulation.fleet import KvLink, Tier
from simulation.performance.profile import iteration_s
from simulation.sizing.batch_queue import PoolShape, decode_places, evaluate_pool, saturated_rps
from simulation.sizing.batch_sizing import size_pool
from simulation.sizing.capacity import SizingCase, capacity
from simulation.sizing.queueing import largest_rate
from simulation.sizing.trial import RequestDraws, Trial, pool_of
from simulation.sizing.workload import Workload, burstiness_of, unit_arrivals
from tests.simulation.builders import profile
from tests.simulation.sizing.test_capacity import BOUNDS, LARGE

RNG = np.random.default_rng(0)
ISL = np.clip(RNG.lognormal(6, 0.7, 4000), 1, 8000).astype(int)
OSL = np.clip(RNG.lognormal(5, 0.6, 4000), 2, 1000).astype(int)
ONE = profile(alpha=0.01, beta=0.0, gamma=0.01, delta=0.0, max_batch=1, budget=2048, kv=100_000)
TIER = Tier("t", ttft_s=1.0, tbt_s=0.06)


def fixed(isl, osl, **how):
    return Workload(np.full(10, isl), np.full(10, osl), **how)


def draws(isl=None, osl=None, requests: int = 20_000) -> RequestDraws:
    lengths = ISL if isl is None else isl, OSL if osl is None else osl
    return RequestDraws(lengths, seed=3, requests=requests)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.8, 0.95])
def test_one_place_and_exponential_answers_are_mm1(load):
    answers = 1 + RNG.geometric(1 / 200.0, 40_000)
    work = Workload(np.ones_like(answers), answers)
    service = 0.01 * answers.mean()
    law = evaluate_pool(ONE, work.at(load / service))
    assert law.utilisation == pytest.approx(load, rel=1e-3)
    assert law.e2e.mean == pytest.approx(service / (1 - load), rel=0.03)
    assert law.wait.mean == pytest.approx(service * load / (1 - load), rel=0.03)


@pytest.mark.parametrize("load", [0.2, 0.5, 0.9])
def test_one_place_and_equal_answers_are_md1(load):
    work, service = fixed(1, 101), 1.01
    law = evaluate_pool(ONE, work.at(load / service))
    assert law.wait.mean == pytest.approx(service * load / 2 / (1 - load), rel=0.02)


def test_light_load_is_the_profile_at_batch_1():
    waits = evaluate_pool(LARGE, fixed(1000, 200, rate=1e-4))
    assert waits.ttft.mean == pytest.approx(float(iteration_s(LARGE, 0, 0, 1000, 0)), rel=1e-3)
    assert waits.tbt.quantile(0.9) == pytest.approx(float(iteration_s(LARGE, 1, 0, 0, 0)), rel=1e-3)
    assert waits.e2e.mean == pytest.approx(0.15 + 199 * 0.03015, rel=1e-3)


def test_long_prompts_at_light_load_take_several_iterations():
    waits = evaluate_pool(LARGE, fixed(5000, 2, rate=1e-4))
    assert waits.ttft.mean == pytest.approx(3 * 0.03 + 5000 * 1.2e-4, rel=1e-3)


@pytest.mark.parametrize(("isl", "osl"), [(800, 200), (300, 400)])
def test_heavy_load_saturates_near_the_fluid_limit(isl, osl):
    work = fixed(isl, osl)
    most = saturated_rps(LARGE, work)
    assert most == pytest.approx(largest_rate(LARGE, isl, osl)[0], rel=0.1)
    assert evaluate_pool(LARGE, work.at(0.98 * most)).stable
    beyond = evaluate_pool(LARGE, work.at(1.02 * most))
    assert not beyond.stable
    assert beyond.attainment(TIER) == 0.0


@pytest.mark.parametrize("load", [0.1, 0.5, 0.8])
def test_percentiles_agree_with_simulation(load):
    work = Workload(ISL, OSL)
    rate = load * saturated_rps(LARGE, work)
    trial = Trial((pool_of(LARGE),), draws(), TIER)
    log = trial.at(rate).requests
    waits = evaluate_pool(LARGE, work.at(rate))
    for share in (0.5, 0.95):
        for law, values in ((waits.ttft, log.ttft_s), (waits.tbt, log.tbt_s)):
            assert law.quantile(share) == pytest.approx(np.nanquantile(values, share), rel=0.15)
    assert waits.e2e.mean == pytest.approx(log.e2e_s.mean(), rel=0.05)


def test_short_answers_wait_for_the_prompts_they_leave_behind():
    """Long prompts and few tokens out: most of a mean gap is what began behind its own prompt."""
    isl, osl = np.full(10, 3000), np.full(10, 12)
    work = Workload(isl, osl)
    rate = 0.6 * saturated_rps(LARGE, work)
    log = Trial((pool_of(LARGE),), draws(isl, osl, 8000), TIER).at(rate).requests
    waits = evaluate_pool(LARGE, work.at(rate))
    assert waits.tbt.mean == pytest.approx(np.nanmean(log.tbt_s), rel=0.1)
    assert waits.ttft.mean == pytest.approx(log.ttft_s.mean(), rel=0.1)
    full = float(iteration_s(LARGE, 0, 0, 2048, 2048 * 3000))
    assert waits.tbt.values[-1] <= full * 1.5


def test_a_prefill_pool_agrees_with_simulation():
    ones = np.ones_like(OSL)
    trial = Trial((pool_of(LARGE, 4),), draws(osl=ones), TIER)
    work = Workload(ISL, OSL)
    rate = 0.7 * saturated_rps(LARGE, work, PoolShape("prefill", 4))
    waits = evaluate_pool(LARGE, work.at(rate), PoolShape("prefill", 4))
    log = trial.at(rate).requests
    assert waits.ttft.mean == pytest.approx(log.ttft_s.mean(), rel=0.2)
    assert not len(waits.tbt.values)


@pytest.mark.parametrize("rate", [5.0, 20.0])
def test_a_decode_pool_agrees_with_simulation(rate):
    link = KvLink(1e5, 1e9)
    pools = (pool_of(LARGE, 12, role="prefill", link=link), pool_of(LARGE, 2, role="decode"))
    trial = Trial(pools, draws(), TIER)
    waits = evaluate_pool(LARGE, Workload(ISL, OSL, rate=rate), PoolShape("decode", 2, link, 12))
    log = trial.at(rate).requests
    assert waits.tbt.mean == pytest.approx(np.nanmean(log.tbt_s), rel=0.05)
    assert waits.tbt.quantile(0.95) == pytest.approx(np.nanquantile(log.tbt_s, 0.95), rel=0.1)


def test_a_link_that_cannot_keep_up_is_not_stable():
    work = fixed(1000, 100, rate=5.0)
    fast, slow = (
        evaluate_pool(LARGE, work, PoolShape("decode", link=KvLink(1e5, speed)))
        for speed in (1e9, 4e8)
    )
    assert fast.stable
    assert not slow.stable


def test_memory_limits_the_batch():
    small = profile(max_batch=256, budget=2048, kv=10_000)
    assert decode_places(small, fixed(900, 200)) == (10, "memory")
    assert decode_places(small, fixed(100, 11)) == (94, "memory")
    with pytest.raises(SimulationError, match="does not fit"):
        decode_places(small, fixed(20_000, 10))


def test_looser_limits_and_more_instances_never_carry_less():
    work = Workload(ISL, OSL)
    rates = [size_pool(LARGE, work, Tier("t", ttft_s=t)).max_rps for t in (0.7, 1.0, 2.0)]
    assert rates == sorted(rates)
    tight = Tier("t", tbt_s=0.045)
    rates = [size_pool(LARGE, work, tight, PoolShape("decode", n)).max_rps for n in (1, 2, 3)]
    assert rates[1] >= 2 * rates[0] * 0.99
    assert rates[2] >= 3 * rates[0] * 0.99


@pytest.mark.parametrize(("tier", "bound"), BOUNDS)
def test_sizes_are_near_those_of_simulation_and_bound_by_the_same(tier, bound):
    sized = size_pool(LARGE, Workload(ISL, OSL), tier)
    assert sized.bound_by == bound
    assert sized.max_rps == pytest.approx(
        capacity(SizingCase(LARGE, (ISL, OSL), tier)).max_rps, rel=0.15
    )


def test_a_tier_that_cannot_be_met_is_told():
    with pytest.raises(SimulationError, match="even at batch 1"):
        size_pool(LARGE, fixed(1000, 100), Tier("t", ttft_s=0.1))


def test_burstiness_is_measured_and_drawn():
    for burstiness in (0.0, 0.5, 1.0, 4.0):
        drawn = unit_arrivals(200_000, burstiness, np.random.default_rng(1))
        assert burstiness_of(drawn) == pytest.approx(burstiness, rel=0.05, abs=1e-9)
        assert drawn[-1] == pytest.approx(200_000, rel=0.02)
    assert burstiness_of(np.array([1.0])) == 1.0


def test_bursts_cost_rate_in_both():
    tier = Tier("t", ttft_s=0.5)
    calm, bursty = (
        size_pool(LARGE, Workload(ISL, OSL, burstiness=b), tier).max_rps for b in (1.0, 4.0)
    )
    assert bursty < calm
    assert capacity(SizingCase(LARGE, (ISL, OSL), tier, burstiness=4.0)).max_rps < 0.98 * calm


def test_a_workload_without_lengths_is_refused():
    with pytest.raises(SimulationError, match="sample of lengths"):
        Workload(np.zeros(0, int), np.zeros(0, int))
