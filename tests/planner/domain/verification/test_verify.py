"""A plan corrected both ways on requests from before its window, and judged on the window's."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import polars as pl
import pytest

from planner.domain.planning.inputs import PlannedWindow
from planner.domain.planning.planning import plan_window
from planner.domain.progress import silent
from planner.domain.replay.detail import ALL
from planner.domain.study import PolicyRun, Study
from planner.domain.verification.correction import NEAR_TARGET, misses
from planner.domain.verification.verify import (
    AGREED,
    GAVE_UP,
    MAX_ROUNDS,
    NEAREST,
    NO_PLAN,
    VerifiedPlan,
    verify,
)
from simulation.fleet import Tier
from tests.planner.domain.replay.test_replay import study


def planned(shared: Study) -> PlannedWindow:
    return plan_window(shared.plan_input, silent, method="perfect")


def hopeful(shared: Study, factor: float) -> Study:
    """Sizes that are not those of an instance."""
    factors = np.full(shared.sizes.theta_tps.shape, factor)
    return replace(shared, sizes=shared.sizes.scaled(factors))


def checked(shared: Study, factor: float) -> VerifiedPlan:
    wrong = hopeful(shared, factor)
    return verify(wrong, planned(wrong), seed=1, progress=silent)


def test_sizes_that_are_too_hopeful_are_corrected_down(shared: Study) -> None:
    verified = checked(shared, 1.6)
    assert verified.outcome in (AGREED, NEAREST)
    assert not verified.first.meets_slo
    assert verified.run.summary.gpu_hours > verified.first.summary.gpu_hours
    assert (verified.study.sizes.theta_tps < hopeful(shared, 1.6).sizes.theta_tps).any()
    (row,) = verified.tier_outcomes
    assert row.first is not None and row.attainment is not None
    assert row.attainment > row.first


def test_sizes_that_are_too_timid_are_corrected_up(shared: Study) -> None:
    """It met every tier, and so was called right as it was, at twice the instances needed."""
    verified = checked(shared, 0.5)
    assert verified.outcome in (AGREED, NEAREST)
    assert verified.run.summary.gpu_hours < 0.75 * verified.first.summary.gpu_hours
    assert verified.rounds[0].gpu_hours > min(row.gpu_hours for row in verified.rounds)
    (row,) = verified.tier_outcomes
    assert row.attainment is not None and row.attainment >= 0.95
    assert "+" not in verified.report.sentence and "GPU-hours" in verified.report.sentence


def test_both_ways_lead_to_the_same_plan(shared: Study) -> None:
    """Within an instance or two: what sizes were to begin with does not matter."""
    down, up = (checked(shared, factor).run.summary.gpu_hours for factor in (1.6, 0.5))
    assert down == pytest.approx(up, rel=0.25)


def test_it_is_corrected_on_other_requests_than_it_is_judged_on(shared: Study) -> None:
    verified = checked(shared, 1.0)
    assert verified.corrected_on
    assert all(words in verified.report.sentence for words in verified.corrected_on)
    assert verified.run.summary.arrived == len(shared.trace)
    best = min(verified.rounds, key=lambda row: (len(row.missed), row.cost_usd))
    for share in best.attainment.values():
        assert share is None or share >= 0.95
    for row in verified.tier_outcomes:
        near = row.attainment is not None and 0 <= row.attainment - row.target <= NEAR_TARGET
        assert row.near == near


def test_what_the_first_plan_missed_has_causes_that_add_up(shared: Study) -> None:
    verified = checked(shared, 1.6)
    share = verified.first.summary.slo_attainment["chat"]
    assert share is not None
    assert sum(cause.share for cause in verified.causes_first) == pytest.approx(1.0 - share)
    assert verified.causes == () or not verified.run.meets_slo


def test_what_sizes_cannot_mend_is_said(tmp_path: Path) -> None:
    """So few GPUs that any smaller size leaves no plan."""
    few = study(tmp_path)
    wrong = hopeful(few, 3.0)
    plan = planned(wrong)
    hardware = replace(wrong.hardware, capacity_gpus=plan.plan.target.sum(axis=1).max(axis=0))
    verified = verify(replace(wrong, hardware=hardware), plan, seed=1, progress=silent)
    assert verified.outcome in (NO_PLAN, GAVE_UP)
    assert len(verified.rounds) <= MAX_ROUNDS
    assert "%" in verified.report.sentence and "due to sizes" in verified.report.sentence


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
