"""Prefill to decode: laws of the ratios, the closed forms beside simulation of all of them."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.errors import SimulationError
from simulation.fleet import KvLink, Tier
from simulation.sizing.pd_ratio import (
    PdService,
    all_splits,
    best_ratio,
    best_split,
    closed_form_ratio,
    per_gpu,
    ratios,
)
from simulation.sizing.pd_simulation import simulate_best_ratios, simulate_ratio
from simulation.sizing.workload import Workload
from tests.simulation.builders import profile

RNG = np.random.default_rng(0)
ISL = np.clip(RNG.lognormal(7, 0.3, 2000), 1, 4000).astype(int)
OSL = np.clip(RNG.lognormal(5, 0.3, 2000), 2, 1000).astype(int)
SPEED = profile(
    alpha=0.02, beta=2e-4, gamma=0.02, delta=6e-5, max_batch=256, budget=4096, kv=300_000, tp=2
)
SERVICE = PdService(
    SPEED, SPEED, Workload(ISL, OSL), Tier("t", ttft_s=0.5, tbt_s=0.03), KvLink(1e5, 1e11)
)


def test_all_ways_to_divide():
    assert all_splits(4) == [(1, 3), (2, 2), (3, 1)]


def test_the_curve_peaks_between_its_ends():
    every_ratio = ratios(SERVICE, all_splits(8))
    worth = [ratio.max_tps for ratio in every_ratio]
    best = best_ratio(every_ratio, SERVICE)
    assert worth[0] < best.ratio.max_tps > worth[-1]
    assert best.fewer_prefill > 0 and best.more_prefill > 0
    assert {ratio.side for ratio in every_ratio} == {"prefill", "decode"}
    assert every_ratio[0].bound_by == "ttft" and every_ratio[-1].bound_by == "tbt"
    assert best.ratio.ttft_s <= 0.5 and best.ratio.tbt_s <= 0.03
    assert best_split(SERVICE, 8) == best.ratio


def test_the_choice_is_that_of_simulating_every_ratio():
    every = [simulate_ratio(SERVICE, p, d, requests=8000) for p, d in all_splits(5)]
    seen = simulate_best_ratios(SERVICE, ratios(SERVICE, all_splits(5)), requests=8000)
    truth, nearby = best_ratio(every, SERVICE).ratio, best_ratio(seen, SERVICE).ratio
    assert (nearby.prefill, nearby.decode) == (truth.prefill, truth.decode)
    for ratio in every:
        closed = closed_form_ratio(SERVICE, ratio.prefill, ratio.decode)
        assert closed.max_tps == pytest.approx(ratio.max_tps, rel=0.2)
        assert closed.side == ratio.side
        # At four prefill instances the link and the time between tokens bind at nearly one rate.
        assert closed.bound_by == ratio.bound_by or {closed.bound_by, ratio.bound_by} == {
            "link",
            "tbt",
        }


def test_more_instances_and_looser_limits_never_carry_less():
    fewer, more, prefill = (
        closed_form_ratio(SERVICE, *split).max_tps for split in ((3, 2), (3, 3), (4, 2))
    )
    assert more >= 0.995 * fewer and prefill >= 0.995 * fewer
    rates = [
        best_split(replace(SERVICE, tier=Tier("t", ttft_s=t, tbt_s=0.03)), 6).max_tps
        for t in (0.3, 0.5, 1.0)
    ]
    assert rates == sorted(rates)


def test_longer_prompts_want_more_prefill_and_longer_answers_less():
    def prefills(isl, osl):
        work = Workload((ISL * isl).astype(int), np.maximum((OSL * osl).astype(int), 1))
        return best_split(replace(SERVICE, workload=work), 12).prefill

    assert prefills(0.25, 1) < prefills(1, 1) < prefills(2, 1)
    assert prefills(1, 4) < prefills(1, 1) < prefills(1, 0.25)


def test_a_slow_link_binds_and_costs():
    slow = replace(SERVICE, link=KvLink(1e5, 2e8))
    ratio = closed_form_ratio(slow, 2, 4)
    assert ratio.bound_by == "link" and ratio.side == "decode"
    assert ratio.max_rps <= 2 * 2e8 / (1e5 * slow.workload.facts.mean_isl)  # of two links
    assert ratio.max_tps < closed_form_ratio(SERVICE, 2, 4).max_tps
    assert simulate_ratio(slow, 2, 4, requests=3000).bound_by == "link"


def test_different_gpus_are_weighed_by_what_they_hold():
    wide = profile(
        alpha=0.02, beta=2e-4, gamma=0.02, delta=6e-5, max_batch=256, budget=4096, kv=300_000, tp=4
    )
    narrow, other = (
        closed_form_ratio(SERVICE, 3, 2),
        closed_form_ratio(replace(SERVICE, decode=wide), 3, 2),
    )
    assert other.max_tps == narrow.max_tps
    assert per_gpu(SERVICE, narrow) == pytest.approx(narrow.max_tps / 10)
    assert per_gpu(replace(SERVICE, decode=wide), other) == pytest.approx(narrow.max_tps / 14)


def test_limits_that_no_ratio_meets_are_told():
    tight = replace(SERVICE, tier=Tier("t", ttft_s=0.01))
    worthless = ratios(tight, all_splits(3))
    assert [ratio.max_tps for ratio in worthless] == [0.0, 0.0]
    assert worthless[0].bound_by == "slo"
    with pytest.raises(SimulationError, match="No ratio"):
        best_ratio(worthless, tight)


def test_a_decode_pool_whose_full_batch_keeps_the_limit_is_bound_by_its_throughput():
    """32 sequences take 26.4 ms, under the 30 ms: gaps that are longer wait for a place."""
    few = replace(SERVICE, decode=replace(SPEED, max_batch=32))
    closed = closed_form_ratio(few, 7, 1)
    assert closed.bound_by == "throughput" and closed.side == "decode"
    assert simulate_ratio(few, 7, 1, requests=1500).bound_by == "throughput"
    assert closed_form_ratio(SERVICE, 7, 1).bound_by == "tbt"  # 256 of them take 71 ms
