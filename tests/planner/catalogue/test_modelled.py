"""Profiles of the newest models by rule: what people look for is there, and what a form writes of
one is as fast in a scenario."""

from __future__ import annotations

import pytest

from planner import catalogue
from planner.catalogue.modelled import CONTEXT, GPUS, SEQUENCES, modelled
from planner.scenario.known import NOTHING
from planner.scenario.schema import Profile
from planner.scenario.speeds import speed_of
from planner.web.forms.profile_choice import ProfileChoice
from simulation.performance.fitting.compare import stated_error
from simulation.performance.memory import largest_batch
from simulation.performance.profile import Profile as Speed
from simulation.performance.specs import Arrangement

WANTED = ("qwen3-32b", "qwen3-235b-a22b", "gpt-oss-120b", "llama-3.3-70b", "llama-4-scout")


def test_the_newest_models_are_there_on_every_gpu_type() -> None:
    have = {(one.model, one.gpu) for one in modelled()}
    assert have >= {(model, gpu) for model in WANTED for gpu in GPUS}
    assert have >= {(model, "B200") for model in ("deepseek-v3", "deepseek-r1", "kimi-k2")}
    keys = [(one.model, one.gpu, one.tp) for one in modelled()]
    assert len(keys) == len(set(keys)) and not set(keys) & set(catalogue.profiles())


def test_each_is_on_the_fewest_gpus_that_hold_it() -> None:
    for one in modelled()[::7]:
        shape, gpu = catalogue.shape(one.model), catalogue.gpu(one.gpu)
        length = min(CONTEXT, shape.max_context)
        held = [
            largest_batch(shape, gpu, Arrangement(tp=tp, weights=one.precision), length, 2048)
            for tp in (one.tp // 2, one.tp)
            if tp
        ]
        assert held[-1] >= SEQUENCES and (one.tp == 1 or held[0] < SEQUENCES)


def test_each_says_that_it_is_modelled_and_how_far_off() -> None:
    for one in modelled()[::25]:
        assert isinstance(one, Speed) and one.provenance.kind == "modelled"
        error = stated_error(one)
        assert error is not None and 0.05 < error.mape < 1.0
        assert one.precision == catalogue.published_precision(one.model)


@pytest.mark.parametrize("name", ["deepseek-v3", "llama-3.3-70b", "gpt-oss-120b"])
def test_what_a_form_writes_of_one_is_as_fast(name: str) -> None:
    one = next(one for one in modelled() if one.model == name and one.gpu == "H200")
    choice = ProfileChoice.of(
        {"model": name, "gpu": one.gpu, "tp": one.tp, "kind": one.kind, "precision": one.precision}
    )
    assert ProfileChoice.decode(choice.encode()) == choice
    section = Profile.model_validate(choice.row())
    made = speed_of(section, catalogue.model(name), catalogue.gpu(one.gpu), NOTHING)
    assert (made.curve.values == one.curve.values).all()
    assert made.kv_capacity_tokens == one.kv_capacity_tokens and made.spread == one.spread
    low = "" if one.precision == "bf16" else f", {one.precision}"
    assert choice.label == f"{name} on H200 × {one.tp} (roofline{low})"
