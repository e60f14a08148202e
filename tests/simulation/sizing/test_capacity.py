"""The rate found is where the SLO breaks, and what binds is named."""

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.metrics import meets_slo
from simulation.policies.static import Static
from simulation.sizing.capacity import SizingCase, capacity
from simulation.sizing.queueing import largest_rate
from tests.simulation.builders import fleet, pool, profile, trace

RNG = np.random.default_rng(0)
SAMPLE = (
    np.clip(RNG.lognormal(6, 1, 2000), 1, 8000).astype(int),
    np.clip(RNG.lognormal(5, 0.8, 2000), 1, 1000).astype(int),
)
LARGE = profile(
    alpha=0.03, beta=1.5e-4, gamma=0.03, delta=1.2e-4, max_batch=256, budget=2048, kv=400_000, tp=8
)

BOUNDS = [  # what limits a replica, by the tier
    (Tier("t", ttft_s=1.0), "ttft"),
    (Tier("t", ttft_s=60.0, tbt_s=0.05), "tbt"),
    (Tier("t", e2e_s=20.0), "e2e"),
    (Tier("t"), "throughput"),
]


@pytest.mark.parametrize(
    ("tier", "bound"),
    [*BOUNDS, (Tier("t", e2e_s=86_400.0, deferrable=True), "throughput")],
)
def test_bound_is_named_and_the_rate_meets_the_slo(tier, bound):
    carried = capacity(SizingCase(LARGE, SAMPLE, tier))
    assert carried.bound_by == bound
    assert carried.attainment >= tier.attainment
    for value, limit in ((carried.ttft_s, tier.ttft_s), (carried.tbt_s, tier.tbt_s)):
        if limit is not None:
            assert value <= limit
    assert carried.input_tps == pytest.approx(carried.max_rps * SAMPLE[0].mean(), rel=0.1)


def test_the_slo_breaks_a_little_above():
    tier = Tier("t", ttft_s=1.0)
    carried = capacity(SizingCase(LARGE, SAMPLE, tier))
    for factor, met in ((0.9, True), (1.1, False)):
        rng = np.random.default_rng(99)
        rows = rng.integers(2000, size=20_000)
        arrivals = np.cumsum(rng.exponential(1 / (factor * carried.max_rps), 20_000))
        fresh = trace(arrivals, SAMPLE[0][rows], SAMPLE[1][rows])
        result = simulate(fresh, fleet(pool(LARGE), tiers=[tier]), Static([1]))
        assert (meets_slo(result).mean() >= 0.95) == met


def test_little_memory_binds_and_costs_rate():
    small = profile(
        alpha=0.03, beta=1.5e-4, gamma=0.03, delta=1.2e-4, max_batch=256, budget=2048, kv=20_000
    )
    for tier in (Tier("t", ttft_s=1.0), Tier("t")):
        carried = capacity(SizingCase(small, SAMPLE, tier))
        assert carried.bound_by == "memory"
        assert carried.max_rps < capacity(SizingCase(LARGE, SAMPLE, tier)).max_rps


def test_saturated_rate_is_near_the_fluid_limit():
    fixed = (np.full(10, 800), np.full(10, 200))
    carried = capacity(SizingCase(LARGE, fixed, Tier("t")))
    assert carried.max_rps == pytest.approx(largest_rate(LARGE, 800, 200)[0], rel=0.05)


def test_looser_limits_never_carry_less():
    rates = [
        capacity(SizingCase(LARGE, SAMPLE, Tier("t", ttft_s=t))).max_rps
        for t in (0.7, 1.0, 2.0, 5.0)
    ]
    assert rates == sorted(rates)


def test_trickle_that_misses_says_which_limit_and_what_the_profile_gives():
    fixed = (np.full(10, 1000), np.full(10, 200))
    with pytest.raises(SimulationError, match=r"TTFT limit of 100 ms.*up to 150 ms"):
        capacity(SizingCase(LARGE, fixed, Tier("t", ttft_s=0.1)))
    with pytest.raises(SimulationError, match=r"TPOT limit of 20 ms.*up to 30 ms"):
        capacity(SizingCase(LARGE, fixed, Tier("t", tbt_s=0.02)))


def test_requests_that_do_not_fit_are_told():
    tiny = profile(kv=100)
    with pytest.raises(SimulationError, match="fits"):
        capacity(SizingCase(tiny, ([500], [10]), Tier("t")))
    with pytest.raises(SimulationError, match=r"50\.\d% of requests need more|4\d\.\d% of"):
        capacity(SizingCase(tiny, ([500, 5], [10, 10]), Tier("t", ttft_s=60.0)))


@pytest.mark.parametrize(("max_batch", "bound"), [(8, "throughput"), (256, "tbt")])
def test_a_decode_pool_whose_fullest_batch_keeps_the_limit_is_bound_by_its_throughput(
    max_batch, bound
):
    """Gaps of 31 ms with eight sequences never miss 40 ms: what does has waited for a place. With
    256 they are 68 ms."""
    speed = profile(alpha=0.03, beta=1.5e-4, gamma=0.03, delta=1.2e-4, max_batch=max_batch,
                  budget=2048, kv=4_000_000, tp=8)  # fmt: skip
    carried = capacity(
        SizingCase(speed, SAMPLE, Tier("t", tbt_s=0.04), role="decode"), requests=4000
    )
    assert carried.bound_by == bound
