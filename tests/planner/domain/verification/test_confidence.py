"""How sure a recommendation is: the same policy where one thing is otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.domain.progress import silent
from planner.domain.replay.policy_context import making_of
from planner.domain.replay.replay import run_policy
from planner.domain.study import Study
from planner.domain.verification.sensitivity import how_sure
from planner.policies.choice import policy_of
from simulation.performance.adjusted_profile import adjusted
from simulation.performance.profile import Check
from tests.planner.domain.replay.test_policies import study


def with_error(toy: Study, error: float) -> Study:
    check = Check("TBT", "rows of a test", 10, error, error, error, 0.0)
    profiles = {
        cell: adjusted(profile, checks=(check,)) for cell, profile in toy.hardware.profiles.items()
    }
    return replace(toy, hardware=replace(toy.hardware, profiles=profiles))


@pytest.mark.parametrize("name", ["flat-peak", "lt-i"])
def test_other_requests_and_slower_instances_are_replayed_on_the_fleet_as_it_was_bought(
    tmp_path: Path, name: str
) -> None:
    toy = with_error(study(tmp_path), 0.5)
    policy = policy_of(name)
    run = run_policy(toy, policy, seed=1, progress=silent)
    making = making_of(toy, seed=1, progress=silent)
    drawn, slower = how_sure(toy, policy, making, seed=1, progress=silent)
    assert drawn.what == "seed 2, requests drawn again" and "slower" in slower.what
    asked, was = run.summary.slo_attainment["chat"], slower.attainment["chat"]
    assert asked is not None and was is not None and was < asked
    # The same instances at the same times: what they cost does not depend on what comes.
    assert drawn.cost_usd == pytest.approx(run.summary.cost_usd, rel=0.02)
    assert drawn.attainment != run.summary.slo_attainment


def test_without_a_known_error_nothing_is_said_of_it(tmp_path: Path) -> None:
    toy = study(tmp_path)
    making = making_of(toy, seed=1, progress=silent)
    sure = how_sure(toy, policy_of("flat-peak"), making, seed=1, progress=silent)
    assert [row.what for row in sure] == ["seed 2, requests drawn again"]
