"""The rule: the cheapest candidate that passes every required day, by brute force and by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.recommend.rule import TIE, Candidate, CaseResult, recommend
from planner.domain.recommend.test_days import Case, TestDay
from planner.domain.results.assurance import Interval, interval_of
from planner.domain.study import Study
from planner.policies.registry import simplicity

NAMES = ("flat-before", "lt-i", "lt-g", "hpa")


def nothing() -> Study:
    pytest.fail("the rule simulates nothing")


def a_day(level: int | None = 0, weight: float = 1.0, cases: int = 1) -> TestDay:
    return TestDay("a day", "past", {}, weight, level, (Case(nothing),) * cases)


def result(usd: float, shortfall: float = 0.0, attainment: float = 0.99) -> CaseResult:
    return CaseResult(usd, {"chat": attainment}, shortfall)


def candidate(policy: str, *days: tuple[CaseResult, ...]) -> Candidate:
    return Candidate(policy, policy, None, False, {}, dict(enumerate(days)))


@given(
    st.lists(
        st.lists(
            st.tuples(st.floats(1, 100), st.sampled_from([0.0, 0.0, 0.02])), min_size=2, max_size=2
        ),
        min_size=1,
        max_size=4,
    )
)
def test_the_choice_is_that_of_brute_force(table: list[list[tuple[float, float]]]) -> None:
    days = [a_day(weight=1.0), a_day(weight=3.0)]
    candidates = [
        candidate(name, *((result(usd, short),) for usd, short in row))
        for name, row in zip(NAMES, table, strict=False)
    ]
    choice = recommend(candidates, days, 0)
    assert choice is not None
    passing = [c for c, row in zip(candidates, table, strict=True) if not any(s for _, s in row)]
    costs = {
        c.policy: (row[0][0] + 3 * row[1][0]) / 4 for c, row in zip(candidates, table, strict=True)
    }
    assert choice.qualifies == bool(passing)
    if not passing:
        worst = {c.policy: max(s for _, s in row) for c, row in zip(candidates, table, strict=True)}
        assert worst[choice.candidate.policy] == min(worst.values())
        return
    least = min(costs[c.policy] for c in passing)
    tied = [c.policy for c in passing if costs[c.policy] <= least * (1 + TIE)]
    assert choice.candidate.policy == min(tied, key=lambda p: (simplicity(p), costs[p]))


def test_a_level_requires_its_days_and_those_of_the_levels_below() -> None:
    days = [a_day(0), a_day(1, 0.0), a_day(2, 0.0), a_day(None, 0.0)]
    fails = [
        candidate(name, *((result(10, 0.1 if i == failed else 0.0),) for i in range(4)))
        for failed, name in enumerate(NAMES)
    ]
    passes = [[c.qualifies(days, level) for level in range(3)] for c in fails]
    assert passes == [[False] * 3, [True, False, False], [True, True, False], [True] * 3]


def test_a_drawn_day_passes_with_its_required_cases_and_costs_the_weighted_mean() -> None:
    weights, required = (0.3, 0.4, 0.3), (False, True, True)
    cases = [Case(nothing, weight=w, required=r) for w, r in zip(weights, required, strict=True)]
    day = TestDay("drawn", "drawn", {}, 1.0, 0, tuple(cases), 0.5)
    one = candidate("lt-i", (result(20, 0.3), result(10), result(5)))
    assert one.qualifies([day], 0) and one.expected_cost_usd([day]) == pytest.approx(11.5)
    two = candidate("lt-i", (result(20, 0.3), result(10, 0.1), result(5)))
    assert not two.qualifies([day], 0)
    assert two.shortfall([day], 0) == 0.1  # the case that is not required may fail


def test_a_day_that_does_not_apply_is_not_required() -> None:
    day = TestDay("region", "region_lost", {}, 0.0, 0, (), reason="one region")
    one = candidate("lt-i", (result(5),), ())
    assert one.qualifies([a_day(), day], 0) and one.on(1, day) is None


def test_a_candidate_that_was_not_simulated_on_a_required_day_does_not_qualify() -> None:
    days = [a_day(), a_day()]
    known = candidate("lt-i", (result(50),), (result(50),))
    unknown = candidate("hpa", (result(1),))
    choice = recommend([known, unknown], days, 0)
    assert (
        choice is not None
        and choice.candidate is known
        and unknown.expected_cost_usd(days) == np.inf
    )


def test_the_interval_contains_the_mean_and_four_of_five_cases() -> None:
    values = np.random.default_rng(1).gamma(5.0, 20.0, 200)
    day = a_day(cases=200)
    one = candidate("lt-i", tuple(result(float(usd)) for usd in values))
    interval = interval_of(one, [day])
    assert interval is not None and interval.mean == pytest.approx(values.mean())
    assert np.mean([interval.contains(usd) for usd in values]) == pytest.approx(0.8, abs=0.01)


def test_an_end_of_the_interval_is_inside_and_a_tie_widens_it() -> None:
    interval = Interval(95.0, 90.0, 100.0)
    assert interval.contains(90.0) and interval.contains(100.0)
    assert not interval.contains(89.5) and not interval.contains(100.5)
    assert interval.contains(89.5, TIE) and interval.contains(100.5, TIE)
    assert Interval(95.0, None, None).contains(95.0) is None


def test_without_a_candidate_there_is_no_choice() -> None:
    assert recommend([], [a_day()], 0) is None
