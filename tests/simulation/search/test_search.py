"""The search: its parts by brute force, its answer by judging everything."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from simulation.fleet import KvLink, Tier
from simulation.performance.curves import evaluate
from simulation.performance.linear import LinearProfile
from simulation.performance.roofline import roofline_profile
from simulation.performance.specs import Arrangement, Provenance
from simulation.search.evaluation import rate_by_closed_forms, rate_by_simulation
from simulation.search.screen import aggregated_loads, speeds_of
from simulation.search.search import copies_needed, cost_key, pareto_front, search
from simulation.search.space import HEADS, arrangements
from simulation.search.table import (
    CLEARLY_BETTER,
    MISSES_TBT,
    MISSES_TTFT,
    MOST_EACH,
    MOST_GPUS,
    best_ratios,
)
from simulation.search.values import Candidate, Instance, Requests
from simulation.sizing.batch_queue import PoolShape, saturated_rps
from simulation.sizing.spread import Spread, thin
from tests.simulation.performance.test_graph import DEEPSEEK, LLAMA_8B
from tests.simulation.performance.test_roofline import FACTORS, GPU, LIMITS

HERE = Provenance("assumed", "test")
WANTED = Requests(1024, 128, Tier("limits", ttft_s=1.0, tbt_s=0.06))


def instance(
    gpu: str = "A", alpha_ms: float = 10.0, price: float = 1.0, tp: int = 1, prompt_us: float = 50.0
) -> Instance:
    """Decode iterations of ``alpha_ms`` and a little per sequence."""
    profile = LinearProfile(
        "m",
        gpu,
        tp,
        alpha_ms / 1e3,
        1e-4,
        alpha_ms / 1e3,
        prompt_us / 1e6,
        128,
        2048,
        400_000,
        HERE,
    )
    where = Arrangement(tp=tp)
    return Instance(replace(GPU, name=gpu), where, ("vllm",), profile, price, KvLink(1e5, 5e10))


def test_each_linear_profile_has_its_own_speeds() -> None:
    both = speeds_of([instance(alpha_ms=10.0), instance(alpha_ms=4.0)], WANTED)
    assert both.decode_s[0, 0] > 2 * both.decode_s[1, 0]


def test_points_of_a_front_are_those_that_nothing_beats() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):
        first, second = draw.integers(0, 8, (2, 30)).astype(float)
        first[0] = np.nan
        kept = {(first[i], second[i]) for i in pareto_front(first, second)}
        points = list(zip(first[1:], second[1:], strict=True))
        expected = {
            (a, b)
            for a, b in points
            if not any((c <= a and d <= b) and (c, d) != (a, b) for c, d in points)
        }
        assert kept == expected


def test_ratios_of_pairs_are_the_best_of_all_whole_ones() -> None:
    draw = np.random.default_rng(1)
    prefill, decode = draw.uniform(1, 40, 5), draw.uniform(1, 40, 4)
    first, second = draw.integers(1, 9, 5), draw.integers(1, 9, 4)
    pairs = best_ratios(prefill, first, decode, second)
    for p, d in product(range(5), range(4)):
        every = [
            min(x * prefill[p], y * decode[d]) / (x * first[p] + y * second[d])
            for x, y in product(range(1, MOST_EACH + 1), repeat=2)
            if x * first[p] + y * second[d] <= MOST_GPUS
        ]
        x, y = pairs.prefills[p, d], pairs.decodes[p, d]
        assert pairs.gpus[p, d] == x * first[p] + y * second[d] <= MOST_GPUS
        assert pairs.rate[p, d] == pytest.approx(min(x * prefill[p], y * decode[d]))
        assert (
            max(every) / CLEARLY_BETTER**2
            <= pairs.rate[p, d] / pairs.gpus[p, d]
            <= max(every) + 1e-12
        )


def test_a_side_that_carries_nothing_makes_no_pair() -> None:
    pairs = best_ratios(np.array([0.0, 5.0]), np.array([1, 1]), np.array([5.0]), np.array([1]))
    assert pairs.rate[0, 0] == 0.0 and pairs.rate[1, 0] == 5.0


def test_arrangements_use_the_gpus_they_say_and_divide_what_they_divide() -> None:
    dense = [a for a in arrangements(LLAMA_8B, GPU, "bf16") if isinstance(a, Arrangement)]
    assert {a.gpus for a in dense} >= {1, 2, 4, 8} and all(a.attention_dp == 1 for a in dense)
    mixed = [a for a in arrangements(DEEPSEEK, GPU, "fp8") if isinstance(a, Arrangement)]
    assert len(mixed) == len(set(mixed))
    for a in mixed:
        assert a.moe_tp * a.moe_ep == a.tp * a.attention_dp
        assert DEEPSEEK.experts % a.moe_ep == 0 and DEEPSEEK.heads % a.tp == 0
    assert {(a.attention_dp, a.moe_ep) for a in mixed} >= {(8, 8), (1, 8), (8, 1)}
    odd = replace(LLAMA_8B, heads=20, kv_heads=4)
    assert list(arrangements(odd, GPU, "bf16")).count(HEADS) > 0


@pytest.mark.parametrize("where", [Arrangement(), Arrangement(attention_dp=4, moe_ep=4)])
def test_a_host_prepares_sequences_of_a_copy_of_attention_beside_the_gpu(
    where: Arrangement,
) -> None:
    shape = LLAMA_8B if where.gpus == 1 else DEEPSEEK
    plain = roofline_profile(shape, GPU, where, FACTORS, LIMITS)
    slow = roofline_profile(shape, GPU, where, FACTORS, replace(LIMITS, sequence_s=5e-4))
    b = np.array([0.0, 1, 7, 100, 1000])
    alone, both = (evaluate(profile.curve, b, b * 500, 0, 0) for profile in (plain, slow))
    host = 5e-4 * b / where.attention_dp
    assert (both >= np.maximum(alone, host) * (1 - 1e-9)).all()
    assert (both[1:] < alone[1:] + host[1:]).all()
    prompts = [evaluate(profile.curve, 0, 0, 64, 64 * 32) for profile in (plain, slow)]
    assert prompts[0] == prompts[1]


@pytest.mark.parametrize("alpha_ms", [5.0, 20.0, 45.0])
@pytest.mark.parametrize("ttft_s", [0.3, 2.0, None])
def test_the_first_look_is_near_the_closed_forms(alpha_ms: float, ttft_s: float | None) -> None:
    asked = replace(WANTED, tier=replace(WANTED.tier, ttft_s=ttft_s))
    speed = instance(alpha_ms=alpha_ms)
    first = float(aggregated_loads(speeds_of([speed], asked), asked).largest_rates(asked)[0])
    judged = rate_by_closed_forms(Candidate(speed), asked)
    assert judged is not None and first == pytest.approx(judged.rate, rel=0.3)


def test_the_best_is_the_best_of_all_that_are_simulated() -> None:
    instances = [
        instance("A", 10.0, 1.0), instance("B", 6.0, 1.4), instance("C", 20.0, 0.9),
        instance("D", 10.0, float("nan")),
    ]  # fmt: skip
    asked = replace(WANTED, tier=replace(WANTED.tier, tbt_s=0.05))
    result = search(instances, asked, top=4)
    alone = [rate_by_simulation(Candidate(single), asked, 1.0, 0) for single in instances[:3]]
    cheapest = min(cost_key(alone_rate, asked) for alone_rate in alone if alone_rate is not None)
    assert cost_key(result.best[0], asked)[0] <= cheapest[0] * 1.0001
    assert [answer.judged for answer in result.best] == ["simulation"] * len(result.best)
    assert [cost_key(answer, asked) for answer in result.best] == sorted(
        cost_key(answer, asked) for answer in result.best
    )
    assert {answer.candidate.decode.gpu.name for answer in result.by_gpu} == set("ABCD")
    assert result.by_gpu[-1].candidate.decode.gpu.name == "D"  # without a price: last
    again = search(instances, asked, top=1)
    assert again.best[0].rate == result.best[0].rate  # by the seed
    assert result.evaluated == 4 + 4 and sum(result.ruled_out.values()) == 0


def test_fronts_hold_no_point_that_another_beats_and_all_keep_the_limits() -> None:
    result = search([instance("A", 10.0, 1.0), instance("B", 4.0, 3.0)], WANTED, top=2)
    for points, measure in ((result.latency, "ttft_s"), (result.speed, "tbt_s")):
        assert points
        dollars = [point.candidate.usd_per_hour / point.rate for point in points]
        late = [getattr(point, measure) for point in points]
        assert dollars == sorted(dollars) and late == sorted(late, reverse=True)
        assert all(point.ttft_s <= 1.0 and point.tbt_s <= 0.06 for point in points)


def test_what_misses_a_limit_at_any_rate_is_counted_by_the_limit() -> None:
    slow, long = instance(alpha_ms=80.0), instance("B", prompt_us=3000.0)
    result = search([slow, long], WANTED, top=1)
    assert result.best == () and result.ruled_out[MISSES_TBT] >= 2
    assert result.ruled_out[MISSES_TTFT] >= 1
    assert sum(result.ruled_out.values()) == result.evaluated


def test_for_a_rate_whole_instances_are_paid() -> None:
    small, large = instance("A", 12.0, 1.0), instance("B", 6.0, 1.2)
    few = search([small, large], replace(WANTED, rps=0.5), top=9).best[0]
    assert few.candidate.decode.gpu.name == "A" and few.candidate.gpus == 1
    assert (
        copies_needed(2.0, 4.0) == 2
        and copies_needed(2.0, 4.1) == 3
        and copies_needed(2.0, 0.1) == 1
    )


def test_weights_that_rounding_made_negative_do_no_harm() -> None:
    values = np.linspace(0.0, 1.0, 200)
    weights = np.full(200, 1 / 199)
    weights[0] = -1e-17
    thin_spread = thin(Spread(values, weights), 20)
    assert thin_spread.mean == pytest.approx(float(values @ weights))


def test_a_pair_carries_no_more_than_either_side_lets_through() -> None:
    """Judged by runs too short to see the line before decoding grow, it would."""
    first = instance(prompt_us=5.0)
    slow = LinearProfile("m", "A", 1, 0.03, 1e-6, 0.03, 1e-6, 64, 2048, 400_000, HERE)
    decode = replace(instance(), profile=slow)
    pair = Candidate(decode, first, 1, 1)
    asked = Requests(1024, 256, Tier("limits", ttft_s=5.0, tbt_s=0.2))
    most = saturated_rps(slow, asked.workload, PoolShape("decode"))
    closed = rate_by_closed_forms(pair, asked)
    assert closed is not None and closed.rate <= most
    rated = rate_by_simulation(pair, asked, 2.0 * most, 0)
    assert rated is not None and 0.8 * most < rated.rate <= most
    assert rated.rate == pytest.approx(closed.rate, rel=0.1)
