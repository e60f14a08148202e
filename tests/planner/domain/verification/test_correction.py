"""Sizes between one that held and one that did not; prefill and decode apart."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from planner.domain.verification.correction import (
    FACTOR_GROWTH,
    MAX_FACTOR,
    NEAR_TARGET,
    PRECISION,
    Correction,
    TierStanding,
)
from planner.inputs.scenario.build import Hardware


def correction(*stages: int) -> Correction:
    """Of one model on a column of each stage."""
    hardware = SimpleNamespace(
        models=[SimpleNamespace(name="m")],
        columns=list(stages),
        stages=np.array(stages),
        profiles={(0, g): None for g in range(len(stages))},
    )
    return Correction(cast(Hardware, hardware))


def at(spare: float, prompts: float = 0.0, rest: float = 0.0) -> dict[str, TierStanding]:
    return {"m": TierStanding("t", spare, prompts, rest)}


@pytest.mark.parametrize("limit", [0.4, 0.83, 1.0, 1.7, 3.1])
def test_the_largest_size_that_holds_is_found_from_both_sides(limit: float) -> None:
    corrected = correction(0)
    for _ in range(30):
        holds = corrected.factors[0, 0] <= limit
        if not corrected.learn(at(0.04 if holds else -0.2)):
            break
    corrected.settle()
    assert corrected.factors[0, 0] <= limit <= corrected.factors[0, 0] * (1 + PRECISION)


def test_near_the_tier_nothing_moves() -> None:
    corrected = correction(0)
    assert not corrected.learn(at(NEAR_TARGET / 2))
    assert corrected.factors[0, 0] == 1.0
    assert corrected.learn(at(-0.001)) is False  # it was settled, and noise does not open it again


def test_a_size_that_always_holds_grows_to_a_limit() -> None:
    corrected = correction(0)
    steps = 0
    while corrected.learn(at(0.05)):
        steps += 1
        assert steps < 20
    corrected.settle()
    assert corrected.factors[0, 0] == MAX_FACTOR


def test_the_stage_that_missed_is_lowered_and_the_other_left() -> None:
    corrected = correction(1, 2)
    corrected.learn(at(-0.1, prompts=0.14, rest=0.01))
    assert corrected.factors[0, 0] < 1.0 == corrected.factors[0, 1]
    corrected = correction(1, 2)
    corrected.learn(at(-0.1, prompts=0.01, rest=0.14))
    assert corrected.factors[0, 1] < 1.0 == corrected.factors[0, 0]


def test_both_stages_grow_while_there_is_something_to_spare() -> None:
    corrected = correction(1, 2)
    corrected.learn(at(0.04))
    assert corrected.factors.tolist() == [[FACTOR_GROWTH, FACTOR_GROWTH]]
    assert corrected.factors_by_name == {"m prefill": FACTOR_GROWTH, "m decode": FACTOR_GROWTH}


def test_a_model_of_too_few_requests_stays_as_it_is() -> None:
    corrected = correction(0)
    assert not corrected.learn({})
    assert corrected.factors.tolist() == [[1.0]]
