"""The rule that recommends a policy.

A candidate is a policy with one value of its parameter. It qualifies if it meets every tier on
every required test day. The qualifying candidate with the lowest expected cost over the weighted
days is recommended. Of candidates within TIE of that cost, the simplest is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from planner.domain.recommend.test_days import TestDay
from planner.policies.registry import simplicity

TIE = 0.01  # candidates within this share of the lowest cost count as equal
ROUNDING = 1e-9  # tolerance of shares of requests
NEAR = 0.005  # if none qualifies, shortfalls this close to the smallest count as equal


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The result of a candidate on one simulated day.

    ``attainment`` is the share of requests within every limit, by tier; None without requests.
    ``shortfall`` is how far the worst tier is below its target, as a fraction. Both, and the cost,
    have their defaults if the day was not simulated to its end. The candidate then fails it.
    ``worst_loss`` is the loss of replicas that leaves the least capacity, as an index into
    ``losses_of(study)``.
    """

    cost_usd: float = inf
    attainment: dict[str, float | None] = field(default_factory=dict)
    shortfall: float = 1.0
    worst_loss: int | None = None
    missed_early: bool = False  # the simulation ended because a tier was sure to miss its target
    stopped_at_usd: float = 0.0  # the cost limit at which the simulation ended; 0: at none
    reason: str = ""  # why the policy cannot run on the day

    @property
    def passes(self) -> bool:
        """Return whether every tier meets its target."""
        return self.shortfall <= ROUNDING


@dataclass(frozen=True, slots=True)
class DayResult:
    """The result of a candidate on a test day: means over its cases, and whether it passes."""

    cost_usd: float | None  # None: not every case was simulated
    attainment: dict[str, float | None]
    shortfall: float  # of the worst case that counts
    passes: bool
    reason: str = ""  # why the policy cannot run on the day


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A policy with one parameter value, and its results.

    ``results`` maps the index of a test day to one result per case; None: not simulated.
    """

    policy: str
    label: str
    value: float | None
    spare: bool  # whether its plan keeps a spare replica (N+1)
    parameters: dict[str, float]
    results: Mapping[int, tuple[CaseResult | None, ...]] = field(default_factory=dict)

    def on(self, index: int, day: TestDay) -> DayResult | None:
        """Return the result on test day ``day``, number ``index`` of the list of test days.

        Returns None if a required case was not simulated. The cost in the result is None if any
        case was not simulated.
        """
        # (case, result); a candidate has no results at all for days that were not tried.
        results = list(zip(day.cases, self.results.get(index, ()), strict=False))
        known = [(case, result) for case, result in results if result is not None]
        required = [result for case, result in known if case.required]
        if not required or len(required) < sum(case.required for case in day.cases):
            return None
        tiers = dict.fromkeys(tier for _, result in known for tier in result.attainment)
        weights = [case.weight for case, _ in known]
        shortfall = max(result.shortfall for result in required)
        cost_usd = None
        if len(known) == len(day.cases):
            cost_usd = _mean([result.cost_usd for _, result in known], weights)
        return DayResult(
            cost_usd=cost_usd,
            attainment={
                tier: _mean([result.attainment.get(tier) for _, result in known], weights)
                for tier in tiers
            },
            shortfall=shortfall,
            passes=shortfall <= ROUNDING,
            reason=next((result.reason for _, result in known if result.reason), ""),
        )

    def qualifies(self, days: Sequence[TestDay], level: int) -> bool:
        """Return whether it passes every day that ``level`` of assurance requires."""
        return all(
            (result := self.on(i, day)) is not None and result.passes
            for i, day in enumerate(days)
            if day.required_at(level)
        )

    def shortfall(self, days: Sequence[TestDay], level: int) -> float:
        """Return the largest shortfall on the days that ``level`` requires, as a fraction.

        A day without a result counts as 1.
        """
        results = [self.on(i, day) for i, day in enumerate(days) if day.required_at(level)]
        return max((1.0 if day is None else day.shortfall for day in results), default=0.0)

    def expected_cost_usd(self, days: Sequence[TestDay]) -> float:
        """Return the weighted mean cost of the test days in dollars; infinite if unknown."""
        total = weights = 0.0
        for i, day in enumerate(days):
            if not day.weight or not day.cases:
                continue
            result = self.on(i, day)
            if result is None or result.cost_usd is None:
                return inf
            total += day.weight * result.cost_usd
            weights += day.weight
        return total / weights if weights else inf


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The candidate recommended at one level of assurance.

    If no candidate passes every required day, it is the one nearest to passing. Then ``qualifies``
    is False, and ``failing`` names the days that it fails.
    """

    candidate: Candidate
    qualifies: bool
    failing: tuple[str, ...]
    runner_up: Candidate | None  # the next cheapest of the qualifying candidates of other policies


def recommend(
    candidates: Sequence[Candidate], days: Sequence[TestDay], level: int
) -> Choice | None:
    """Return the cheapest candidate, by expected cost, that qualifies at a level of assurance.

    ``level`` is an index of ``LEVELS``. Among equal costs (within ``TIE``), the simplest policy
    wins. If none qualifies, return the one nearest to passing. Without candidates, return None.
    """
    qualifying = [c for c in candidates if c.qualifies(days, level)]
    if not qualifying:
        return _nearest(candidates, days, level)
    lowest = min(c.expected_cost_usd(days) for c in qualifying)
    equal = [c for c in qualifying if c.expected_cost_usd(days) <= lowest * (1 + TIE)]
    best = min(equal, key=lambda c: (simplicity(c.policy), c.expected_cost_usd(days)))
    others = [c for c in qualifying if c.policy != best.policy]
    runner_up = min(others, key=lambda c: c.expected_cost_usd(days), default=None)
    return Choice(best, qualifies=True, failing=(), runner_up=runner_up)


def _nearest(candidates: Sequence[Candidate], days: Sequence[TestDay], level: int) -> Choice | None:
    """Return the cheapest of the candidates that are nearest to passing; None without candidates.

    A candidate's shortfall is that on its worst required day. The nearest are those within ``NEAR``
    of the smallest shortfall.
    """
    if not candidates:
        return None
    smallest = min(c.shortfall(days, level) for c in candidates)
    near = [c for c in candidates if c.shortfall(days, level) <= smallest + NEAR]
    nearest = min(near, key=lambda c: c.expected_cost_usd(days))
    failing = []
    for i, day in enumerate(days):
        result = nearest.on(i, day)
        if day.required_at(level) and not (result and result.passes):
            failing.append(day.name)
    return Choice(nearest, qualifies=False, failing=tuple(failing), runner_up=None)


def _mean(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Return the weighted mean of the known values; None if none is known."""
    known = [pair for pair in zip(values, weights, strict=True) if pair[0] is not None]
    total = sum(weight for _, weight in known)
    if not total:
        return known[0][0] if known else None
    return sum(value * weight for value, weight in known if value is not None) / total
