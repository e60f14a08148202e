"""Built-in profiles that cannot both be right are said to, wherever they are used."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from planner import catalogue
from planner.catalogue.contradictions import CONTRADICTED, carries, contradictions
from planner.scenario.known import NOTHING
from planner.scenario.schema import Profile
from planner.scenario.speeds import speed_of

KNOWN = catalogue.profiles()
AGAINST = contradictions(KNOWN)


def test_what_an_instance_carries_by_hand() -> None:
    """256 sequences, 10 ms and 0.1 ms each: 35.6 ms an iteration; 1,000 prompt tokens 50 ms."""
    one = replace(KNOWN["llama-3.1-8b", "A100-80GB", 1], alpha_s=0.01, beta_s=1e-4, delta_s=5e-5)
    per_request = 200 * 0.0356 / 256 + 0.05
    assert carries(one, 1000, 200) == pytest.approx(1 / per_request)


def test_every_pair_of_which_more_gpus_carry_less_is_flagged_and_no_other() -> None:
    for few, many in itertools.permutations(KNOWN, 2):
        if few[:2] == many[:2] and few[2] < many[2] and carries(KNOWN[many]) < carries(KNOWN[few]):
            assert few in AGAINST and many in AGAINST
    assert {key[:2] for key in AGAINST} == {
        ("llama-3.1-8b", "A100-80GB"),
        ("llama-3.2-3b", "A100-80GB"),
    }
    assert "SageServe" in AGAINST["llama-3.1-8b", "A100-80GB", 4]


def test_a_scenario_that_uses_one_says_so_in_its_provenance() -> None:
    def source(gpu: str) -> str:
        section = Profile(model="llama-3.1-8b", gpu=gpu, tp=4)
        model, kind = catalogue.models()["llama-3.1-8b"], catalogue.gpu(gpu)
        return speed_of(section, model, kind, NOTHING).provenance.source

    assert CONTRADICTED in source("A100-80GB")
    assert CONTRADICTED not in source("H100-SXM")
