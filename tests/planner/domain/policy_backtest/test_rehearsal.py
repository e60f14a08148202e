"""Rehearsals: what is chosen on the days before rests on them alone, and is the cheapest there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from planner.domain import parallel
from planner.domain.policy_backtest.backtest import (
    Rehearsal,
    rehearse,
)
from planner.domain.policy_backtest.tuning import tuned
from planner.domain.progress import silent
from planner.domain.replay.backtest_windows import (
    Earlier,
    goal_of,
)
from planner.domain.replay.replay import run_policy
from planner.domain.study import PolicyRun
from planner.errors import Infeasible
from planner.policies.base import Policy
from planner.policies.choice import policy_of
from planner.policies.registry import POLICIES, TRAITS
from tests.planner.domain.replay.test_earlier import days
from tests.planner.domain.results.test_verdict import run as figures

PLAN = policy_of("lt-i")
KNOB = PLAN.free
assert KNOB is not None
GOALS = {"fast": goal_of(0.95, 1.0, 0.5), "slow": goal_of(0.9, 1.0, 0.5)}
VALUES = KNOB.values


@dataclass
class Stage:
    """A window in which a plan is met from ``enough`` times the forecast on, and costs that."""

    enough: float
    below: float = 0.96  # what is in time with less
    values: list[float] = field(default_factory=list)  # that were replayed

    @property
    def replays(self) -> int:
        return len(self.values)

    def __call__(self, policy: Policy) -> PolicyRun:
        value = policy.arguments["load_factor"]
        self.values.append(value)
        return figures("lt-i", 10 * value, fast=0.98 if value >= self.enough else self.below)


@pytest.mark.parametrize("first", range(len(VALUES)))
def test_the_cheapest_value_that_does_is_found_in_few_replays(first: int) -> None:
    stage = Stage(VALUES[first])
    policy, best, tried = tuned(PLAN, [stage], GOALS)
    assert best.meets and best.value == VALUES[first] == policy.arguments["load_factor"]
    assert len(tried) == stage.replays <= 4


def test_it_has_to_do_in_every_window() -> None:
    easy, hard = Stage(VALUES[2]), Stage(VALUES[9])
    assert tuned(PLAN, [easy, hard], GOALS)[1].value == VALUES[9]
    # All are tried on the first alone; the others see what does there, and what is safer where
    # that does not do: of fifteen values few.
    assert hard.replays <= 5 and easy.replays <= 7
    again, same = Stage(VALUES[2]), Stage(VALUES[2])
    _, best, tried = tuned(PLAN, [again, same], GOALS)
    assert best.value == VALUES[2] and len(best.summaries) == 2 and same.replays == 1
    # What did on the first alone does not count as met, cheap as one window is.
    assert [trial for trial in tried if trial.meets] == [best]


def test_a_safer_value_that_is_cheaper_is_taken() -> None:
    """A target may be dear for being overshot: of those that do the cheapest is taken."""

    def overshoots(policy: Policy) -> PolicyRun:
        place = VALUES.index(policy.arguments["load_factor"])
        return figures("lt-i", 100.0 if place == 5 else 50.0, fast=0.98 if place >= 5 else 0.9)

    best = tuned(PLAN, [overshoots, overshoots], GOALS)[1]
    assert best.meets and best.cost_usd == 100.0 and VALUES.index(best.value or 0) > 5


def test_it_has_to_keep_the_spare_that_the_scenario_asks_for() -> None:
    easy = Stage(VALUES[2])

    def kept(policy: Policy) -> PolicyRun:
        lacks = 0.0 if policy.arguments["load_factor"] >= VALUES[6] else 0.2
        return replace(easy(policy), lacks_spare=lacks)

    _, best, _ = tuned(PLAN, [kept], GOALS)
    assert best.value == VALUES[6] and best.meets

    def never(policy: Policy) -> PolicyRun:
        return replace(easy(policy), lacks_spare=0.1)

    _, best, _ = tuned(PLAN, [never], GOALS)
    assert not best.meets and best.shortfall == 0.1


def test_half_of_what_may_be_missed_is_left_over() -> None:
    """96% are enough for a tier of 95%, and not for one that is to leave half of its 5% over."""
    stage = Stage(VALUES[5])
    assert tuned(PLAN, [stage], {"fast": 0.95, "slow": 0.9})[1].value == VALUES[0]
    assert tuned(PLAN, [stage], GOALS)[1].value == VALUES[5]


def test_no_value_is_replayed_twice_in_a_window() -> None:
    """Not even the one that does there, which is tried again on a stray day, nor those after it."""
    stage, stray = Stage(VALUES[2]), Stage(VALUES[9], below=0.9)
    _, best, _ = tuned(PLAN, [stage], GOALS, [stray])
    assert best.value == VALUES[9]
    assert len(set(stage.values)) == stage.replays and len(set(stray.values)) == stray.replays


def test_where_none_does_the_nearest_is_kept_and_what_has_no_plan_is_not() -> None:
    def short(policy: Policy) -> PolicyRun:
        value = policy.arguments["load_factor"]
        if value > 1.2:
            raise Infeasible("too much")
        return figures("lt-i", 10, fast=0.5 + 0.1 * value)

    policy, best, _ = tuned(PLAN, [short], GOALS)
    assert not best.meets and best.value == 1.0 == policy.arguments["load_factor"]

    def never(policy: Policy) -> PolicyRun:
        raise Infeasible("too much")

    with pytest.raises(Infeasible, match="no plan on the days before"):
        tuned(PLAN, [never], GOALS)


def test_what_the_scenario_sets_is_run_as_it_is() -> None:
    free_policy = policy_of("lt-i", load_factor=1.3)
    stage = Stage(2.0)
    policy, best, tried = tuned(free_policy, [stage], GOALS)
    assert policy is free_policy and best.value is None and stage.replays == len(tried) == 1


NAMES = ("flat-before", "reactive", "lt-i", "hpa", "flat-min", "lt-i-perfect")


def rehearsed(folder: Path, after: float = 1.0) -> tuple[list[Policy], Rehearsal, Any]:
    toy = days(folder, after)
    policies, rehearsal = rehearse(
        [policy_of(name) for name in NAMES], Earlier(toy), seed=1, progress=silent
    )
    return policies, rehearsal, toy


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Rehearsed for a day like the one before, two policies at a time, and for one of three times
    the load, one after the other."""
    folder = tmp_path_factory.mktemp("days")
    same = rehearsed(folder / "same")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(parallel, "MOST", 0)
        return same, rehearsed(folder / "more", 3.0)


def test_neither_what_comes_nor_who_is_tried_first_changes_what_is_chosen(both: Any) -> None:
    (same, rehearsal, _), (more, other, _) = both
    assert [policy.arguments for policy in same] == [policy.arguments for policy in more]
    assert rehearsal.policies == other.policies and rehearsal.windows == other.windows


def test_only_what_can_be_run_is_rehearsed(both: Any) -> None:
    (_, rehearsal, _), _ = both
    assert {part.policy for part in rehearsal.policies} == {
        name for name in NAMES if not TRAITS[name].knows_what_came
    }
    for part in rehearsal.policies:
        costs = [trial.cost_usd for trial in part.tried if trial.meets]
        assert not part.meets or part.chosen.cost_usd == min(costs)


def test_what_was_chosen_does_on_a_day_like_the_one_before(both: Any) -> None:
    (policies, rehearsal, toy), _ = both
    assert any(part.meets for part in rehearsal.policies)
    for policy in policies:
        part = rehearsal.of(policy.key)
        if part is not None and part.meets:
            run = run_policy(toy, policy, seed=1, progress=silent, earlier=Earlier(toy))
            assert run.meets_slo, policy.key


def test_without_an_earlier_window_nothing_is_turned(tmp_path: Path) -> None:
    toy = days(tmp_path / "none")
    policies_given = [policy_of(name) for name in POLICIES]
    policies, rehearsal = rehearse(policies_given, Earlier(toy, most=0), seed=1, progress=silent)
    assert policies == policies_given and rehearsal.windows == () == rehearsal.policies


def test_a_policy_that_cannot_be_made_there_is_run_as_it_is_with_a_note(tmp_path: Path) -> None:
    toy = days(tmp_path / "few")
    today = policy_of("today")  # nobody said what runs
    policies, rehearsal = rehearse([today], Earlier(toy), seed=1, progress=silent)
    assert policies == [today] and rehearsal.policies == ()
    assert "was not rehearsed on the days before: policies: 'today' needs" in rehearsal.notes[0]
    # Where it is left out of the comparison too, that says why.
    assert rehearsal.without_notes_on([today.title]).notes == ()
    assert rehearsal.without_notes_on(["Another"]).notes == rehearsal.notes
