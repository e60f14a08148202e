"""Built-in profiles that cannot both be right are said to, wherever they are used."""

import itertools
from dataclasses import replace

import pytest

from planner.inputs import catalogue
from planner.inputs.catalogue.measured_profiles import (
    CONTRADICTED,
    ISL,
    OSL,
    capacity_rps,
    contradictions,
)
from planner.inputs.scenario.schema import Profile
from planner.inputs.scenario.speeds import speed_of
from planner.inputs.scenario.user_facts import NO_USER_FACTS
from simulation.performance.linear import LinearProfile

KNOWN = catalogue.profiles()
AGAINST = contradictions(KNOWN)


def test_what_an_instance_carries_by_hand() -> None:
    """256 sequences, 10 ms and 0.1 ms each: 35.6 ms an iteration; 0.05 ms a prompt token."""
    profile = replace(
        KNOWN["llama-3.1-8b", "A100-80GB", 1], alpha_s=0.01, beta_s=1e-4, delta_s=5e-5
    )
    per_request = OSL * 0.0356 / 256 + ISL * 5e-5
    assert capacity_rps(profile) == pytest.approx(1 / per_request)


def test_no_built_in_profile_contradicts_another() -> None:
    assert not AGAINST


def slower_on_four() -> dict[tuple[str, str, int], LinearProfile]:
    """The built-in ones and one on four GPUs that takes longer than the one on two."""
    two = KNOWN["llama-3.1-8b", "A100-80GB", 2]
    four = replace(two, tp=4, delta_s=3 * two.delta_s)
    return KNOWN | {("llama-3.1-8b", "A100-80GB", 4): four}


def test_every_pair_of_which_more_gpus_carry_less_is_flagged_and_no_other() -> None:
    known = slower_on_four()
    against = contradictions(known)
    for few, many in itertools.permutations(known, 2):
        if (
            few[:2] == many[:2]
            and few[2] < many[2]
            and capacity_rps(known[many]) < capacity_rps(known[few])
        ):
            assert few in against and many in against
    assert {key[2] for key in against} == {1, 2, 4}
    assert {key[:2] for key in against} == {("llama-3.1-8b", "A100-80GB")}
    assert "SageServe" in against["llama-3.1-8b", "A100-80GB", 4]


def test_a_scenario_that_uses_one_says_so_in_its_provenance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalogue, "profiles", slower_on_four)

    def source(gpu: str) -> str:
        section = Profile(model="llama-3.1-8b", gpu=gpu, tp=4)
        model, kind = catalogue.models()["llama-3.1-8b"], catalogue.gpu(gpu)
        return speed_of(section, model, kind, NO_USER_FACTS).provenance.source

    assert CONTRADICTED in source("A100-80GB")
    assert CONTRADICTED not in source("H100-SXM")


def test_a_sequence_of_sageserve_adds_no_more_than_its_cache_takes_to_read() -> None:
    """What the prompts of the others take is not charged as decode: 0.019 ms of a sequence of 576
    tokens and 131,072 bytes each, on two GPUs of 2,039 GB/s, and what a host adds."""
    cache_s = 576 * 131_072 / 2 / 2.039e12
    beta_s = KNOWN["llama-3.1-8b", "A100-80GB", 2].beta_s
    assert beta_s == pytest.approx(cache_s, rel=0.3)
