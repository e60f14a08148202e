"""Room for growth is tried with what is about to be recommended, and the answer is the same as by
trying everything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from planner.domain.policy_backtest.backtest import (
    PolicyBacktest,
    everyone,
    with_room,
)
from planner.domain.policy_backtest.backtest import _backtest_of as part_of
from planner.domain.policy_backtest.tuning import Tuning
from planner.domain.results.recommendation import (
    _rehearsed,
    leading,
    recommend,
)
from planner.domain.study import PolicyRun
from planner.policies.base import Policy
from planner.policies.choice import policy_of
from tests.planner.domain.results.test_verdict import run as figures

GOALS = {"fast": 0.96, "slow": 0.95}
TURNED = ("lt-i", "lt-i-last-value", "lt-i-seasonal", "lt-h")
FIXED = ("today", "flat-before")
BUSIER = "busier"


@dataclass
class Case:
    """Policies by what a unit of their knob costs, where they meet the tiers, and where with more
    requests; a knob's places, of those that have none 0 or, for never, any other."""

    usd: dict[str, float]
    meets: dict[str, int]
    grows: dict[str, int]
    replays: list[tuple[str, str]] = field(default_factory=list)  # what, by whom

    def tunings(self) -> dict[str, Tuning]:
        return {
            name: Tuning(
                policy_of(name), [self._on("day", self.meets)], GOALS, (),
                self._on(BUSIER, self.grows),
            )
            for name in self.usd
        }  # fmt: skip

    def _on(self, what: str, enough: dict[str, int]) -> Callable[[Policy], PolicyRun]:
        def replay(policy: Policy) -> PolicyRun:
            name, knob = policy.key, policy.knob
            self.replays.append((what, name))
            value = 1.0 if knob is None else policy.arguments[knob.field]
            place = 0 if knob is None else knob.values.index(value)
            return figures(
                name, self.usd[name] * value, fast=0.97 if place >= enough[name] else 0.8
            )

        return replay

    def settled(self, lead: Callable[..., object]) -> tuple[list[PolicyBacktest], int]:
        self.replays.clear()
        made = self.tunings()
        with_room(made, True, lead, lambda several: [its.make_room() for its in several])  # type: ignore[arg-type]
        return [part_of(tuning, True) for tuning in made.values()], len(self.replays)

    def taken(
        self, parts: list[PolicyBacktest], objective: str
    ) -> tuple[str, float | None, bool | None]:
        runs = [figures(name, 1.0) for name in self.usd]
        roomy = any(part.does for part in parts)
        able = [_rehearsed(part, roomy, asked=True) for part in parts]
        taken_part = next(
            advice for advice in recommend(runs, able, "") if advice.objective == objective
        )
        its = next(part for part in parts if part.policy == taken_part.policy)
        return taken_part.policy, its.value, its.chosen.room


def drawn(seed: int) -> Case:
    rng = np.random.default_rng(seed)
    names = [*TURNED, *FIXED]
    places = {name: 16 if name in TURNED else 2 for name in names}
    meets = {name: int(rng.integers(places[name])) for name in names}
    more = {name: meets[name] + int(rng.integers(8 if name in TURNED else 2)) for name in names}
    return Case({name: float(rng.uniform(5, 20)) for name in names}, meets, more)


@pytest.mark.parametrize("seed", range(40))
def test_the_recommendation_is_the_same_as_by_trying_all(seed: int) -> None:
    case = drawn(seed)
    some, fewer = case.settled(leading)
    every, replays = case.settled(everyone)
    for objective in ("cost", "energy", "carbon", "throughput"):
        assert case.taken(some, objective) == case.taken(every, objective)
    assert fewer <= replays
    # What was not tried for room costs more without it than what is taken with it.
    if any(part.chosen.room for part in some):
        least = min(part.chosen.cost_usd for part in some if part.chosen.room)
        for part in some:
            assert part.chosen.room is not None or not part.meets or part.chosen.cost_usd >= least


def test_what_is_dearer_without_room_than_the_first_with_it_is_not_tried() -> None:
    case = Case({"lt-i": 10, "lt-h": 40}, {"lt-i": 3, "lt-h": 3}, {"lt-i": 5, "lt-h": 9})
    parts, _ = case.settled(leading)
    assert [part.chosen.room for part in parts] == [True, None]
    assert (BUSIER, "lt-h") not in case.replays
    # The day itself was replayed in the search without room, and once more with the value found.
    knob = policy_of("lt-i").knob
    assert knob is not None and parts[0].value == knob.values[5]
    assert case.replays.count(("day", "lt-i")) <= 4 + 1


def test_what_has_no_room_gives_way_to_the_next() -> None:
    case = Case({"lt-i": 10, "flat-before": 30}, {"lt-i": 3, "flat-before": 0},
                {"lt-i": 99, "flat-before": 0})  # fmt: skip
    parts, _ = case.settled(leading)
    assert [part.chosen.room for part in parts] == [False, True]
    assert case.taken(parts, "cost")[0] == "flat-before"
    nobody = Case({"lt-i": 10, "flat-before": 30}, {"lt-i": 3, "flat-before": 0},
                  {"lt-i": 99, "flat-before": 9})  # fmt: skip
    parts, _ = nobody.settled(leading)
    assert [part.chosen.room for part in parts] == [False, False]
    assert nobody.taken(parts, "cost")[0] == "lt-i"
