"""A plan replayed and corrected: agreement where it holds, rounds where sizes are too hopeful."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import polars as pl
import pytest

from planner.studies.checks.verify import AGREED, GAVE_UP, NO_PLAN, ROUNDS, misses, verify
from planner.studies.planning.inputs import Planned
from planner.studies.planning.planning import plan_window
from planner.studies.progress import silent
from planner.studies.replay.detail import ALL
from planner.studies.values import PolicyRun, Study
from simulation.fleet import Tier
from tests.planner.studies.replay.test_replay import study


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study(tmp_path_factory.mktemp("study"))


def planned(shared: Study) -> Planned:
    return plan_window(shared.plan_input, silent, method="perfect")


def hopeful(shared: Study, factor: float) -> Study:
    """Sizes that an instance cannot carry."""
    sizes = shared.sizes.times(np.full(len(shared.sizes.theta_tps), factor))
    return replace(shared, sizes=sizes)


def test_sizes_that_are_too_hopeful_are_corrected_until_the_replay_agrees(shared: Study) -> None:
    wrong = hopeful(shared, 1.6)
    found = verify(wrong, planned(wrong), seed=1, progress=silent, rounds=8)
    first, last = found.rounds[0], found.rounds[-1]
    assert first.missed and len(found.rounds) > 1
    assert found.outcome in (AGREED, GAVE_UP)
    assert last.gpu_hours > first.gpu_hours
    worst = [max((row.short for row in one.missed), default=0.0) for one in found.rounds]
    assert worst[-1] < worst[0]
    assert (found.study.sizes.theta_tps < wrong.sizes.theta_tps).any()
    for before, after in zip(found.rounds[:-1], found.rounds[1:], strict=True):
        for row in before.missed:
            assert after.sizes[row.model] < before.sizes[row.model]
    if found.outcome == AGREED:
        assert not misses(found.study, found.run)
        assert "meets every tier" in found.told.sentence


def test_a_plan_that_holds_is_left_as_it_is(shared: Study) -> None:
    easy = hopeful(shared, 0.5)
    plan = planned(easy)
    found = verify(easy, plan, seed=1, progress=silent)
    assert found.outcome == AGREED and len(found.rounds) == 1
    assert found.planned is plan and found.study is easy
    assert "as it is" in found.told.sentence


def test_what_sizes_cannot_mend_is_said(tmp_path: Path) -> None:
    """So few GPUs that any smaller size leaves no plan."""
    few = study(tmp_path)
    wrong = hopeful(few, 3.0)
    plan = planned(wrong)
    hardware = replace(wrong.hardware, capacity_gpus=plan.plan.target.sum(axis=1).max(axis=0))
    found = verify(replace(wrong, hardware=hardware), plan, seed=1, progress=silent, rounds=2)
    assert found.outcome in (NO_PLAN, GAVE_UP)
    assert len(found.rounds) <= ROUNDS
    assert "%" in found.told.sentence


def test_a_tier_of_few_requests_is_missed_though_nearly_all_requests_are_met() -> None:
    """Of a thousand requests in one place ten are of the strict tier, and none of those is met."""
    tiers = (Tier("plain", ttft_s=1.0, attainment=0.95), Tier("strict", ttft_s=0.1, attainment=0.9))
    groups = pl.DataFrame(
        {
            "tier": ["plain", "strict", ALL],
            "model": ["m", "m", "m"],
            "region": ["r", "r", "r"],
            "arrived": [990, 10, 1000],
            "attainment": [1.0, 0.0, 0.99],
        }
    )
    run = SimpleNamespace(
        summary=SimpleNamespace(slo_attainment={"plain": 1.0, "strict": 0.0}),
        detail=SimpleNamespace(groups=groups),
    )
    asked = SimpleNamespace(hardware=SimpleNamespace(tiers=tiers))
    (row,) = misses(cast(Study, asked), cast(PolicyRun, run))
    assert (row.tier, row.short, row.arrived) == ("strict", 0.9, 10)
