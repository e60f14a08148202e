"""What a replay missed, laid to causes by counterfactual: each that is put in is the one found."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from planner.domain.planning.inputs import PlannedWindow
from planner.domain.planning.planning import plan_load, plan_window
from planner.domain.progress import silent
from planner.domain.replay.policy_context import SharedInputs
from planner.domain.replay.replay import run_policy
from planner.domain.study import Study
from planner.domain.verification.miss_causes import (
    FORECAST,
    ROUTING,
    SIZE,
    START_UP,
    causes,
    with_free_routing,
)
from planner.policies.choice import policy_of
from simulation.fleet import Routing
from tests.planner.domain.replay.test_replay import study


def found(shared: Study, planned: PlannedWindow) -> tuple[dict[str, float], float]:
    """The share of each cause, and all that was missed."""
    run = run_policy(
        shared, policy_of("lt-i"), seed=1, progress=silent, shared=SharedInputs(planned)
    )
    rows = causes(shared, planned, run, 1, silent)
    missed = 1.0 - (run.summary.slo_attainment["chat"] or 0.0)
    for before, after in pairwise(rows):
        assert after.missed_before == before.missed_after
    return {row.cause: row.share for row in rows}, missed


def perfect(shared: Study) -> PlannedWindow:
    return plan_window(shared.plan_input, silent, method="perfect")


def test_where_nothing_is_missed_there_is_no_cause(shared: Study) -> None:
    factors = np.full(shared.sizes.theta_tps.shape, 0.5)
    easy = replace(shared, sizes=shared.sizes.scaled(factors))
    assert found(easy, perfect(easy))[0] == {}


def test_sizes_too_hopeful(shared: Study) -> None:
    factors = np.full(shared.sizes.theta_tps.shape, 2.5)
    wrong = replace(shared, sizes=shared.sizes.scaled(factors))
    shares, missed = found(wrong, perfect(wrong))
    assert missed > 0.05 and sum(shares.values()) == pytest.approx(missed)
    assert shares[SIZE] > 0.8 * missed


def test_a_forecast_too_low(shared: Study) -> None:
    right = perfect(shared)
    load = right.load.scaled(0.4)
    low = replace(right, load=load, plan=plan_load(shared.plan_input, load, silent))
    shares, missed = found(shared, low)
    assert missed > 0.05 and shares[FORECAST] > 0.8 * missed


def test_instances_that_start_late(tmp_path: Path) -> None:
    """The second period has half of what it needs until it is over: the plan is told that instances
    start in the two minutes it looks ahead, and they take ten."""
    late = study(tmp_path)
    hardware = replace(late.hardware, startup_s=600.0, today=late.hardware.minimum)
    late = replace(late, hardware=hardware)
    right = perfect(late)
    first, second = right.plan.windows
    first = replace(first, target=np.maximum(second.target // 2, 1))
    planned = replace(right, plan=replace(right.plan, windows=(first, second)))
    shares, missed = found(late, planned)
    assert missed > 0.05 and shares[START_UP] > 0


def test_requests_that_wait_in_one_region_beside_idle_instances_in_another(shared: Study) -> None:
    """By memory alone nobody is sent away (methods.md E4, the source's rule)."""
    blind = replace(shared.hardware, routing=Routing(sees="memory"))
    wrong = replace(shared, hardware=blind)
    right = perfect(wrong)
    target = np.array([[[1], [6]], [[1], [6]]])
    windows = tuple(replace(window, target=target) for window in right.plan.windows)
    shares, missed = found(wrong, replace(right, plan=replace(right.plan, windows=windows)))
    assert missed > 0.05 and sum(shares.values()) == pytest.approx(missed)
    assert shares[ROUTING] > 0.8 * missed


def test_regions_side_by_side_share_no_distance(shared: Study) -> None:
    fleet = with_free_routing(shared.fleet(shared.counts_by_pool(shared.peak)))
    assert not fleet.latency_s.any() and fleet.routing.region_threshold == 0.0
