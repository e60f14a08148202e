"""Describe the test days and the recommendation of each level of assurance, as results."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.recommend.rule import ROUNDING, Candidate, Choice
from planner.domain.recommend.test_days import TestDay
from planner.inputs.scenario.schema.test_days import LEVELS

INTERVAL_PERCENTILES = (0.1, 0.9)  # percentiles that bound an 80% interval


@dataclass(frozen=True, slots=True)
class PolicyOnDay:
    """A policy's result on a test day; costs are scaled to the length of the planned window."""

    cost_usd: float | None
    attainment: dict[str, float | None]
    passes: bool
    reason: str  # why it cannot run on the day; "" if it can


@dataclass(frozen=True, slots=True)
class TestDayFigures:
    """A test day with the results of the policies that were tried on it.

    ``kind`` and ``parameters`` say how its traffic or fleet is changed. ``cases`` is the number of
    past days that it was simulated on, of which a policy must pass the share ``pass_share``.
    ``not_applicable`` is the reason if the day does not apply, else "".
    """

    __test__ = False  # pytest would collect the class because of its name

    name: str
    kind: str
    parameters: dict[str, float | str]
    required: bool
    weight: float
    cases: int
    pass_share: float
    not_applicable: str
    policies: dict[str, PolicyOnDay]
    level: str = ""  # lowest level of assurance that requires it; "": no level

    def required_by(self, level: str) -> bool:
        """Return whether a plan must pass this day to have the assurance ``level``."""
        return self.level in LEVELS and LEVELS.index(self.level) <= LEVELS.index(level)


@dataclass(frozen=True, slots=True)
class Interval:
    """The mean of a figure, and the ends of its 80% interval; no ends with a single case."""

    mean: float
    low: float | None
    high: float | None

    def contains(self, value: float, tie: float = 0.0) -> bool | None:
        """Return whether ``value`` is in the interval; None if the interval has no ends.

        Each end is first moved outwards by ``tie``, a fraction of that end.
        """
        if self.low is None or self.high is None:
            return None
        return self.low * (1 - tie) - ROUNDING <= value <= self.high * (1 + tie) + ROUNDING


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected cost and attainment by tier, with 80% intervals, from the weighted test days."""

    cost_usd: Interval | None
    attainment: dict[str, Interval | None]


@dataclass(frozen=True, slots=True)
class AssuranceFigures:
    """The policy recommended at one level of assurance.

    If no policy passes every required day, ``qualifies`` is False. The policy is then the nearest
    to passing, and ``failing`` names the days that it fails.
    """

    policy: str
    label: str
    parameters: dict[str, float]
    cost_usd: float | None
    qualifies: bool
    failing: tuple[str, ...]
    spare: bool  # whether it keeps a spare replica (N+1)
    expected: Expected


def day_figures(
    days: Sequence[TestDay], candidates: Sequence[Candidate], level: int
) -> tuple[TestDayFigures, ...]:
    """Return the figures of test days, with the results of the ``candidates`` tried on them.

    ``level``, an index in LEVELS, decides which days are required.
    """
    figures = []
    for i, day in enumerate(days):
        policies = {}
        for candidate in candidates:
            result = candidate.on(i, day)
            if result is not None:
                policies[candidate.policy] = PolicyOnDay(
                    result.cost_usd, result.attainment, result.passes, result.reason
                )
        figures.append(
            TestDayFigures(
                name=day.name,
                kind=day.kind,
                parameters=day.parameters,
                required=day.required_at(level),
                weight=day.weight,
                cases=len(day.cases),
                pass_share=day.pass_share,
                not_applicable=day.reason,
                policies=policies,
                level="" if day.level is None or not day.cases else LEVELS[day.level],
            )
        )
    return tuple(figures)


def figures_of_choice(choice: Choice, days: Sequence[TestDay]) -> AssuranceFigures:
    """Return the policy chosen for a level of assurance as figures of a result."""
    candidate = choice.candidate
    tiers: dict[str, None] = {}  # those with a result on a test day that counts
    for i, day in enumerate(days):
        results = candidate.results.get(i, ()) if day.weight else ()
        for result in results:
            if result is not None:
                tiers |= dict.fromkeys(result.attainment)
    return AssuranceFigures(
        policy=candidate.policy,
        label=candidate.label,
        parameters=candidate.parameters,
        cost_usd=candidate.expected_cost_usd(days),
        qualifies=choice.qualifies,
        failing=choice.failing,
        spare=candidate.spare,
        expected=Expected(
            interval_of(candidate, days),
            {tier: interval_of(candidate, days, tier) for tier in tiers},
        ),
    )


def interval_of(
    candidate: Candidate, days: Sequence[TestDay], tier: str | None = None
) -> Interval | None:
    """Return the mean and the 80% interval of the cost, or of the attainment of ``tier``.

    The cases of all test days count. The weight of a day is divided among its cases in
    proportion to their own weights. Returns None if no case has a result. One
    value alone has no interval.
    """
    values, weights = [], []
    for i, day in enumerate(days):
        weight_of_all_cases = sum(case.weight for case in day.cases)
        for case, result in zip(day.cases, candidate.results.get(i, ()), strict=False):
            if result is None or not day.weight * case.weight:
                continue
            value = result.cost_usd if tier is None else result.attainment.get(tier)
            if value is not None:
                values.append(value)
                weights.append(day.weight * case.weight / weight_of_all_cases)
    if not values:
        return None
    if len(values) == 1:
        return Interval(float(values[0]), None, None)
    order = np.argsort(values, kind="stable")
    sorted_values, sorted_weights = np.array(values)[order], np.array(weights)[order]
    # Weighted percentiles: a value is at the middle of its weight on their scale.
    middles = np.cumsum(sorted_weights) - sorted_weights / 2
    low, high = np.interp(INTERVAL_PERCENTILES, middles / sorted_weights.sum(), sorted_values)
    return Interval(float(np.average(values, weights=weights)), float(low), float(high))
