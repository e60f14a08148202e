"""Profiles of the newest models by rule: what people look for is there, and what a form writes of
one is as fast in a scenario."""

import pytest

from planner.inputs import catalogue
from planner.inputs.catalogue.rule_based_profiles import CONTEXT, GPUS, SEQUENCES, modelled_profiles
from planner.inputs.scenario.schema import Profile
from planner.inputs.scenario.speeds import speed_of
from planner.inputs.scenario.user_facts import NO_USER_FACTS
from planner.web.forms.profile_choice import ProfileChoice
from simulation.performance.fitting.compare import stated_check_of
from simulation.performance.memory import largest_batch
from simulation.performance.profile import Profile as Speed
from simulation.performance.specs import Arrangement

WANTED = ("qwen3-32b", "qwen3-235b-a22b", "gpt-oss-120b", "llama-3.3-70b", "llama-4-scout")


def test_the_newest_models_are_there_on_every_gpu_type() -> None:
    have = {(speed.model, speed.gpu) for speed in modelled_profiles()}
    assert have >= {(model, gpu) for model in WANTED for gpu in GPUS}
    assert have >= {(model, "B200") for model in ("deepseek-v3", "deepseek-r1", "kimi-k2")}
    keys = [(speed.model, speed.gpu, speed.tp) for speed in modelled_profiles()]
    assert len(keys) == len(set(keys)) and not set(keys) & set(catalogue.profiles())


def test_each_is_on_the_fewest_gpus_that_hold_it() -> None:
    for speed in modelled_profiles()[::7]:
        shape, gpu = catalogue.shape(speed.model), catalogue.gpu(speed.gpu)
        length = min(CONTEXT, shape.max_context)
        held = [
            largest_batch(shape, gpu, Arrangement(tp=tp, weights=speed.precision), length, 2048)
            for tp in (speed.tp // 2, speed.tp)
            if tp
        ]
        assert held[-1] >= SEQUENCES and (speed.tp == 1 or held[0] < SEQUENCES)


def test_each_says_that_it_is_modelled_and_how_far_off() -> None:
    for speed in modelled_profiles()[::25]:
        assert isinstance(speed, Speed) and speed.provenance.kind == "modelled"
        error = stated_check_of(speed)
        assert error is not None and 0.05 < error.mape < 1.0
        assert speed.precision == catalogue.published_precision(speed.model)


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3.3-70b", "gpt-oss-120b"])
def test_what_a_form_writes_of_one_is_as_fast(name: str) -> None:
    speed = next(
        entry for entry in modelled_profiles() if entry.model == name and entry.gpu == "H200"
    )
    choice = ProfileChoice.of(
        {
            "model": name,
            "gpu": speed.gpu,
            "tp": speed.tp,
            "kind": speed.kind,
            "precision": speed.precision,
        }
    )
    assert ProfileChoice.decode(choice.encode()) == choice
    section = Profile.model_validate(choice.row())
    made = speed_of(section, catalogue.model(name), catalogue.gpu(speed.gpu), NO_USER_FACTS)
    assert (made.curve.values == speed.curve.values).all()
    assert made.kv_capacity_tokens == speed.kv_capacity_tokens and made.spread == speed.spread
    low = "" if speed.precision == "bf16" else f", {speed.precision}"
    assert choice.label == f"{name} on {speed.tp} x H200 (roofline{low})"
