"""One speed for one deployment: profiles by shape take what estimates take."""

from dataclasses import replace

import pytest

from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from planner.inputs.catalogue.serving import ENGINE, serving_limits, start_seconds
from planner.inputs.estimates.deployment_rows import deployment
from planner.inputs.scenario.schema import Profile
from planner.inputs.scenario.speeds import speed_of
from planner.inputs.scenario.user_facts import NO_USER_FACTS
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.estimate.estimate import estimate
from simulation.performance.profile import iteration_s
from simulation.performance.roofline import roofline_profile

ROW = {"isl": 1024, "osl": 128, "concurrency": 1, "rounds": 1e9}


@pytest.mark.parametrize(
    ("model", "gpu", "tp"),
    [
        ("llama-3.1-8b", "H100-SXM", 1),
        ("gpt-oss-120b", "H200", 2),
        ("qwen3-32b", "MI300X", 1),
        ("kimi-k2.5", "B200", 4),  # 4-bit integers, which kernels unpack
        ("deepseek-v3", "H200", 8),  # 8-bit products with a scale for each block
    ],
)
def test_a_lone_request_takes_what_its_estimate_says(model: str, gpu: str, tp: int) -> None:
    for engine in ENGINES:
        query = deployment(ROW | {"model": model, "gpu": gpu, "tp": tp, "engine": engine})
        shape = replace(query.shape, encoder=None)
        answer = estimate(query, estimate_fit().calibration, efficiencies())
        (start_s,) = start_seconds(shape, query.gpu, query.decode, (engine,))
        assert answer.ttft_s == pytest.approx(answer.prompt_s + start_s)
        limits = serving_limits(shape, query.gpu, query.decode, engine=engine)
        profile = roofline_profile(shape, query.gpu, query.decode, efficiencies(engine), limits)
        prompt = float(iteration_s(profile, 0.0, 0.0, 1024.0, 1024.0**2 / 2.0))
        assert profile.start_s + prompt == pytest.approx(answer.ttft_s, rel=0.02)
        decode = float(iteration_s(profile, 1.0, 1024.0 + 64.0, 0.0, 0.0))
        assert decode == pytest.approx(answer.decode_s, rel=0.02)


def test_eight_bits_that_a_gpu_unpacks_are_no_slower_than_sixteen() -> None:
    row = {"model": "gpt-oss-120b", "gpu": "A100-80GB", "tp": 4, "engine": "trtllm"}
    row |= {"isl": 6362, "osl": 131, "concurrency": 414}
    sixteen, eight = (
        estimate(deployment(row | {"precision": bits}), estimate_fit().calibration, efficiencies())
        for bits in ("bf16", "fp8")
    )
    assert eight.tokens_per_s >= sixteen.tokens_per_s


def test_how_often_sglang_looks_for_requests_is_said_to_both() -> None:
    row = {"model": "llama-3.1-8b", "gpu": "H100-SXM", "engine": "sglang", "recv_interval": 30}
    query = deployment(ROW | row)
    section = {"model": "llama-3.1-8b", "gpu": "H100-SXM", "kind": "roofline", "engine": "sglang"}
    often, seldom = (
        speed_of(Profile.model_validate(section | more), catalogue.model("llama-3.1-8b"),
                 query.gpu, NO_USER_FACTS)
        for more in ({}, {"recv_interval": 30})
    )  # fmt: skip
    answer = estimate(query, estimate_fit().calibration, efficiencies())
    assert seldom.start_s == pytest.approx(answer.ttft_s - answer.prompt_s)
    waited = 29 * estimate_fit().calibration.polls * answer.decode_s
    assert seldom.start_s - often.start_s == pytest.approx(waited)
    with pytest.raises(ValueError, match="recv_interval"):
        Profile.model_validate(section | {"engine": "vllm", "recv_interval": 30})


def test_without_an_engine_profiles_and_estimates_take_the_same_one() -> None:
    row = {"model": "llama-3.1-8b", "gpu": "H100-SXM"}
    query = deployment(ROW | row)
    assert query.engine == ENGINE
    limits = serving_limits(query.shape, query.gpu, query.decode)
    assert limits == serving_limits(query.shape, query.gpu, query.decode, engine=ENGINE)
    assert catalogue.engine_title(ENGINE) == "vLLM"
