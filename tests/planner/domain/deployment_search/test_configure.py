"""The search for one model: its profiles are those that a scenario makes, its figures add up."""

from dataclasses import replace

import numpy as np
import pytest

from planner.domain.deployment_search.candidates import (
    NO_FIT,
    NO_PRECISION,
    instances_of,
    precisions,
)
from planner.domain.deployment_search.query import DeploymentQuery, price_of
from planner.domain.deployment_search.results import profiles_of
from planner.domain.deployment_search.search import DeploymentSearchResult, search_deployments
from planner.domain.options import options_of
from planner.domain.recommend.rule import TIE
from planner.errors import EXPECTED, PlannerError
from planner.inputs import catalogue
from planner.inputs.scenario.schema import Profile
from planner.inputs.scenario.speeds import speed_of
from planner.inputs.scenario.user_facts import NO_USER_FACTS
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.profile import iteration_s
from simulation.sizing.capacity import SizingCase, capacity

ASKED = DeploymentQuery(
    model="llama-3.1-8b", isl=1024, osl=128, ttft_ms=1000, tbt_ms=40, top=4,
    gpus=("H100-SXM", "A100-80GB", "MI300X"),
)  # fmt: skip


def changed(**changes: object) -> DeploymentQuery:
    return options_of(DeploymentQuery, ASKED.explicit_values() | changes)


KEYS = {
    "gpu", "gpus", "tp", "pp", "attention_dp", "moe_tp", "moe_ep", "precision", "engine", "mode",
    "prefill", "decode", "max_rps", "rps_per_gpu", "usd_per_mtok", "ttft_ms", "tbt_ms",
    "memory_gb", "power_w", "expected_error",
}  # fmt: skip


@pytest.fixture(scope="module")
def coarse_by_default() -> None:
    """Size as in the product, because figures of a search are compared with sizes."""


@pytest.fixture(scope="module")
def configured() -> DeploymentSearchResult:
    return search_deployments(ASKED)


def test_every_candidate_keeps_the_limits_and_its_figures_agree(
    configured: DeploymentSearchResult,
) -> None:
    assert len(configured.candidates) == 4 and configured.model == "llama-3.1-8b"
    costs = [row.usd_per_mtok for row in configured.candidates]
    assert costs == sorted(costs, key=lambda usd: (usd is None, usd))
    for row in (*configured.candidates, *configured.by_gpu, *configured.pareto):
        assert row.__dataclass_fields__.keys() >= KEYS
        assert row.ttft_ms is not None and row.ttft_ms <= 1000
        assert row.tbt_ms is not None and row.tbt_ms <= 40
        assert row.rps_per_gpu == pytest.approx(row.max_rps / row.gpus)
        assert 0 < row.memory_gb < catalogue.gpu(row.gpu).memory_bytes / 1e9
        tdp = catalogue.gpu(row.gpu).tdp_w
        assert tdp is not None and 0 < row.power_w <= tdp * row.gpus
        assert 0 < row.expected_error.tbt < 1
        if row.usd_per_hour is not None and row.usd_per_mtok is not None:
            tokens = row.max_rps * (1024 + 128) * 3600 / 1e6
            assert row.usd_per_mtok == pytest.approx(row.usd_per_hour / tokens)
        sides = [row] if row.prefill is None else [row.prefill, row.decode]
        gpus = sum(getattr(side, "instances", None) or 1 for side in sides)
        assert row.gpus >= gpus and (row.mode == "agg") == (row.prefill is None)
    assert all(row.checked == "simulation" for row in configured.candidates)


def test_the_simplest_within_a_tie_of_the_cheapest_is_recommended(
    configured: DeploymentSearchResult,
) -> None:
    """Within 1%, as for policies, one with fewer roles wins, then one with fewer GPUs."""
    first, *others = configured.candidates
    assert first.usd_per_mtok is not None
    split = replace(first, mode="disagg", gpus=first.gpus + 3)
    near = replace(first, usd_per_mtok=first.usd_per_mtok * (1 + 0.99 * TIE))
    far = replace(first, usd_per_mtok=first.usd_per_mtok * (1 + 1.01 * TIE))
    unpriced = replace(near, usd_per_mtok=None)
    assert replace(configured, candidates=(split, unpriced, near, *others)).simplest == near
    assert replace(configured, candidates=(split, unpriced, far)).simplest == split
    assert replace(configured, candidates=()).simplest is None


def test_a_gpu_without_a_price_is_there_and_comes_last(configured: DeploymentSearchResult) -> None:
    last = configured.by_gpu[-1]
    assert last.gpu == "MI300X" and last.usd_per_mtok is None


def test_the_best_of_a_gpu_costs_the_same_as_in_a_search_of_that_gpu_alone(
    configured: DeploymentSearchResult,
) -> None:
    for row in configured.by_gpu:
        (alone,) = search_deployments(changed(gpus=(row.gpu,))).by_gpu
        assert row.checked == alone.checked or row.usd_per_mtok is None
        assert row.usd_per_mtok is None or row.usd_per_mtok == pytest.approx(
            alone.usd_per_mtok, rel=0.02
        )


def test_what_is_ruled_out_is_counted_with_its_reason(configured: DeploymentSearchResult) -> None:
    assert configured.ruled_out[NO_PRECISION] > 0  # fp8 on A100
    assert sum(configured.ruled_out.values()) < configured.evaluated
    gpu = catalogue.gpu("L4")
    prices = {gpu.name: price_of(gpu.name, {})}
    shape = catalogue.shape("deepseek-v3")
    large = instances_of(shape, "fp8", [gpu], prices, ENGINES, lambda done, what: None)
    assert large.instances == () and large.ruled_out[NO_FIT] > 0
    assert sum(large.ruled_out.values()) == large.evaluated


def test_excluded_precisions_are_counted() -> None:
    only = search_deployments(changed(precisions=("bf16",), disaggregated=False))
    assert {row.precision for row in (*only.candidates, *only.by_gpu)} == {"bf16"}
    assert sum(only.ruled_out.values()) < only.evaluated
    with pytest.raises(PlannerError, match="precision"):
        changed(precisions=("fp3",))


def test_what_a_scenario_makes_of_a_candidate_is_as_fast_and_carries_as_much(
    configured: DeploymentSearchResult,
) -> None:
    row = next(row for row in configured.candidates if row.mode == "agg")
    (section,) = [Profile.model_validate(fields) for fields in profiles_of(row, ASKED.model)]
    speed = speed_of(
        section, catalogue.model(configured.model), catalogue.gpu(row.gpu), NO_USER_FACTS
    )
    lengths = (np.array([1024]), np.array([128]))
    sized = capacity(SizingCase(speed, lengths, ASKED.requests.tier))
    assert row.max_rps == pytest.approx(sized.max_rps, rel=0.05)
    assert speed.tp == row.gpus and speed.max_batch == row.max_batch


def test_engines_differ_where_their_hosts_do() -> None:
    gpus = [catalogue.gpu("H100-SXM"), catalogue.gpu("MI300X")]
    prices = {gpu.name: price_of(gpu.name, {}) for gpu in gpus}
    shape = catalogue.shape("llama-3.2-1b")
    built = instances_of(shape, "bf16", gpus, prices, ENGINES, lambda done, what: None)
    first = {instance.engines: instance.profile for instance in built.instances[:3]}
    assert list(first) == [(engine,) for engine in ENGINES]  # each starts requests in its own time
    assert len({instance.start_s for instance in first.values()}) == 3
    took = [float(iteration_s(profile, 100, 1e5, 0, 0)) for profile in first.values()]
    assert took == pytest.approx([took[0]] * len(ENGINES))
    amd = {
        engine
        for instance in built.instances
        if instance.gpu.name == "MI300X"
        for engine in instance.engines
    }
    assert amd == {"vllm", "sglang"}


def test_weights_are_as_released_or_in_fewer_bits() -> None:
    assert precisions("bf16") == ("bf16", "fp8", "fp4")
    assert precisions("fp8") == ("fp8", "fp4") and precisions("fp4") == ("fp4",)
    assert precisions("int4") == ("int4",)


def test_prices_are_medians_of_what_is_offered_unless_given() -> None:
    offers = [
        offer.usd_per_gpu_hour
        for offer in catalogue.prices()
        if offer.gpu == "H200" and offer.usd_per_gpu_hour
    ]
    assert price_of("H200", {}).usd == pytest.approx(float(np.median(offers)))
    assert price_of("H200", {"H200": 2.5}).usd == 2.5
    assert np.isnan(price_of("MI300X", {}).usd)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "llama-9"}, "llama-9"),
        ({"gpus": ("H1000",)}, "H1000"),
        ({"isl": 0}, "isl 0: give a whole number"),
        ({"isl": 200_000}, "context of llama-3.1-8b"),
        ({"ttft_ms": -1.0}, "ttft_ms -1"),
        ({"rps": 0.0}, "rps 0"),
        ({"percentile": 100.0}, "percentile 100"),
        ({"engines": ("tgi",)}, "tgi"),
        ({"prices": {"H200": 1.0}}, "price of H200"),
        ({"prices": {"H100-SXM": 0.0}}, "prices 0.0: give"),
        ({"top": 0}, "top 0"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(changes: dict[str, object], words: str) -> None:
    with pytest.raises(EXPECTED, match=words):
        search_deployments(changed(**changes))


def test_prices_take_every_name_of_a_gpu() -> None:
    result = search_deployments(changed(gpus=("H100",), prices={"H100": 2.0}, disaggregated=False))
    assert result.candidates
    assert all(row.usd_per_hour == pytest.approx(2.0 * row.gpus) for row in result.candidates)
