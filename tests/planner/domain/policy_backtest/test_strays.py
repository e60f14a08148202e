"""Days unlike the one rehearsed on: no value that fails them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from planner.domain.policy_backtest.perturbed_days import (
    FEW,
    FULLEST,
    STRAYS,
    by_what_it_sees,
    repeats,
    unlike,
    unseen,
)
from planner.domain.policy_backtest.tuning import below, targets_of, tuned
from planner.domain.policy_backtest.window import Stage as WindowOf
from planner.domain.policy_backtest.window import shares_of
from planner.domain.replay.backtest_windows import Earlier
from planner.domain.study import PolicyRun
from planner.policies.base import Policy
from planner.policies.choice import policy_of
from simulation.early_stop import TargetMissed
from tests.planner.domain.policy_backtest.test_rehearsal import GOALS, KNOB, PLAN, Stage
from tests.planner.domain.replay.test_earlier import days
from tests.planner.domain.results.test_verdict import run as figures


def test_a_value_that_does_on_the_day_alone_is_not_taken() -> None:
    assert KNOB is not None
    enough = KNOB.values[6]

    def stray(policy: Policy) -> PolicyRun:
        return figures(
            "lt-i", 99.0, fast=0.96 if policy.arguments["load_factor"] >= enough else 0.9
        )

    policy, best, _ = tuned(PLAN, [Stage(KNOB.values[2])], GOALS, [stray])
    assert best.meets and best.value == KNOB.values[6]
    # What a stray costs is no cost of the day's.
    assert best.cost_usd == pytest.approx(10 * KNOB.values[6])
    assert len(best.summaries) == 1
    assert policy.arguments["load_factor"] == best.value


def test_strays_have_to_meet_the_tiers_and_no_more() -> None:
    """96% are enough for a tier of 95% there, where the day itself has to leave something over."""

    def enough(policy: Policy) -> PolicyRun:
        return figures("lt-i", 1.0, fast=0.96)

    assert tuned(PLAN, [Stage(0.0)], GOALS, [enough])[1].meets
    assert not tuned(PLAN, [enough], GOALS)[1].meets


def test_a_value_without_room_for_growth_is_not_taken_unless_none_has_it() -> None:
    assert KNOB is not None
    enough = KNOB.values[6]

    def busier(policy: Policy) -> PolicyRun:
        does = policy.arguments["load_factor"] >= enough
        return figures("lt-i", 99.0, fast=0.96 if does else 0.9)

    _, best, tried = tuned(PLAN, [Stage(KNOB.values[2])], GOALS, (), busier)
    assert best.does and best.value == enough
    # What would have done without room is kept beside it: what the room costs is told by it.
    (without,) = [trial for trial in tried if trial.value == KNOB.values[2]]
    assert without.meets and not without.does and without.cost_usd < best.cost_usd

    def never(policy: Policy) -> PolicyRun:
        return figures("lt-i", 99.0, fast=0.8)

    _, best, _ = tuned(PLAN, [Stage(KNOB.values[2])], GOALS, (), never)
    assert best.meets and not best.does and best.value == KNOB.values[2]


@pytest.mark.parametrize(
    ("name", "sees"),
    [("hpa", True), ("reactive", True), ("decode-tps", True), ("lt-i", False),
     ("flat-before", False), ("periodic", False)],
)  # fmt: skip
def test_what_goes_by_what_it_sees(name: str, sees: bool) -> None:
    assert by_what_it_sees(policy_of(name)) == sees


@pytest.mark.parametrize(
    ("name", "does"),
    [("periodic", True), ("lt-i-seasonal", True), ("lt-i", False), ("lt-i-last-value", False),
     ("flat-before", False), ("today", False), ("hpa", False)],
)  # fmt: skip
def test_what_repeats_the_day_before(name: str, does: bool) -> None:
    assert repeats(policy_of(name)) == does


def test_a_plan_of_few_decisions_has_to_do_with_its_forecast_s_doubt(tmp_path: Path) -> None:
    study = days(tmp_path, forecast={"quantile": "mean"})
    assert len(study.window.period_starts_s) < FEW
    stage = WindowOf(study, Earlier(study), 0)
    (share,) = shares_of(PLAN, [stage])
    made = stage.planned.forecasts
    high, mean = (
        sum(float(part.sum()) for part in parts)
        for parts in zip(*((forecast.high, forecast.mean) for forecast in made), strict=True)
    )
    assert share == pytest.approx(min(max(high / mean, 1.0), STRAYS[-1]))
    assert len(stage.strayed(share).trace) == pytest.approx(share * len(study.trace), rel=0.05)
    assert shares_of(policy_of("hpa"), [stage]) == STRAYS
    assert shares_of(policy_of("lt-ua"), [stage]) == STRAYS  # set low it lives by what it sees
    assert shares_of(policy_of("lt-g"), [stage]) == (share,)  # never set low
    assert shares_of(policy_of("periodic"), [stage]) == STRAYS  # it never sees that days differ
    assert shares_of(policy_of("flat-before"), [stage]) == ()
    several = [stage] * FEW  # windows enough show it by themselves
    assert shares_of(PLAN, several) == ()


def test_a_plan_for_a_quantile_is_held_to_the_doubt_as_well(tmp_path: Path) -> None:
    """Its knob may take away what the quantile gave: two decisions do not show where that ends."""
    of_the_mean, of_a_quantile = (
        WindowOf(study, Earlier(study), 0)
        for study in (
            days(tmp_path, forecast={"quantile": quantile}) for quantile in ("mean", 0.95)
        )
    )
    assert 1.0 < of_the_mean.doubt == of_a_quantile.doubt
    assert shares_of(PLAN, [of_a_quantile]) == (of_the_mean.doubt,)


def test_what_other_days_show_is_not_played_again() -> None:
    low, high = STRAYS
    assert unseen(()) == unseen([1.0, 0.9, 1.2]) == STRAYS
    assert unseen([low / 2]) == (high,)
    assert unseen([high, 0.9]) == (low,)
    assert unseen([low, high * 2]) == ()


def test_what_repeats_the_day_before_has_room_for_the_busiest_of_the_days_rehearsed() -> None:
    """A Monday after a Sunday: that a Friday after a Thursday was met says nothing of it."""
    assert unlike(()) == unlike([1.0, 1.1]) == STRAYS
    assert unlike([1.0, 2.08]) == (STRAYS[0], 2.08)
    assert unlike([99.0])[1] == FULLEST


assert KNOB is not None


class Unlike:
    """Fleets that attain a share drawn for each value, and end early where they are sure to miss:
    counted are those that were played to their end."""

    def __init__(self, rng: np.random.Generator, least: float, *, cuts: bool) -> None:
        self.shares = dict(zip(KNOB.values, rng.uniform(least, 1.0, len(KNOB.values)), strict=True))
        self.cuts = cuts
        self.played = 0

    def __call__(self, policy: Policy, bars: Mapping[str, float] | None = GOALS) -> PolicyRun:
        share = self.shares[policy.arguments["load_factor"]]
        run = figures("lt-i", 10 * policy.arguments["load_factor"], fast=share)
        if self.cuts and bars is not None and below(run.summary, targets_of(run)):
            raise TargetMissed("fast")
        self.played += 1
        return run


@pytest.mark.parametrize("least", [0.8, 0.93, 0.945])
def test_the_choice_is_the_same_where_what_is_sure_to_miss_ends_early(least: float) -> None:
    for seed in range(30):
        outcomes, played = [], []
        for cuts in (False, True):
            rng = np.random.default_rng(seed)
            strays = [Unlike(rng, least, cuts=cuts) for _ in range(2)]
            busier = Unlike(rng, least, cuts=cuts)
            turned, best, _ = tuned(PLAN, [Stage(KNOB.values[2])], GOALS, strays, busier)
            outcomes.append((turned, best.shortfall, best.meets, best.does, best.costs_usd))
            outcomes[-1] += (best.lacks if best.meets else None,)
            played.append(sum(day.played for day in (*strays, busier)))
        assert outcomes[0] == outcomes[1]
        assert played[1] <= played[0]
