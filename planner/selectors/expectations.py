"""Compare the intervals that comparisons predicted for their policies with later simulations."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

from django.db.models import QuerySet

from planner.domain.recommend.rule import TIE
from planner.domain.results.assurance import AssuranceFigures, Interval
from planner.domain.serialise import from_json
from planner.models import Run, Scenario

NEWEST = 50  # number of comparisons that are read
COST = "Cost"


@dataclass(frozen=True, slots=True)
class Expectation:
    """An 80% interval that a run predicted, and the later outcome in its window.

    ``what`` is COST (in dollars), or the name of a tier (SLO attainment, a share of requests).
    """

    run: int
    name: str
    levels: tuple[str, ...]  # levels of assurance that recommend this policy
    what: str
    expected: Interval
    outcome: float

    @property
    def inside(self) -> bool:
        """Return whether the interval contains the outcome; costs may be outside by TIE."""
        return bool(self.expected.contains(self.outcome, TIE if self.what == COST else 0.0))

    @property
    def verdict(self) -> str:
        """Return "in range", or whether the outcome is "better" or "worse" than the interval."""
        if self.inside:
            return "in range"
        is_lower = self.expected.low is not None and self.outcome < self.expected.low
        is_better = is_lower if self.what == COST else not is_lower  # less cost, or more attainment
        return "better" if is_better else "worse"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """The figures of a policy's simulation that a run predicted."""

    cost_usd: float | None
    slo_attainment: dict[str, float | None]


@dataclass(frozen=True, slots=True)
class _ComparedResult:
    """The parts of a comparison's result that state and measure its expectations."""

    assurance: dict[str, AssuranceFigures]
    alternatives: dict[str, str]  # levels of assurance and the static fleet: policies
    policies: dict[str, _Outcome]


def _past_comparisons(runs: QuerySet[Run]) -> QuerySet[Run]:
    """Return the completed comparisons of past windows among ``runs``, newest first."""
    compared = runs.filter(kind=Run.Kind.COMPARE, state=Run.State.COMPLETED)
    return compared.exclude(result__window__rank=None).order_by("-pk")


def testable_scenario() -> Scenario | None:
    """Return the scenario of the newest past comparison, else the newest scenario, else None."""
    stored = Run.objects.exclude(scenario=None).select_related("scenario")
    run = _past_comparisons(stored).first()
    return run.scenario if run else Scenario.objects.first()


def expectations() -> list[Expectation]:
    """Return the expectations of the newest comparisons of past windows, newest first."""
    keys = [field.name for field in fields(_ComparedResult)]
    rows = _past_comparisons(Run.objects.all()).values_list(
        "pk", "name", *(f"result__{key}" for key in keys)
    )
    found = []
    for pk, name, *values in rows[:NEWEST]:
        document = {key: value or {} for key, value in zip(keys, values, strict=True)}
        found += _expectations_of_run(pk, name, from_json(_ComparedResult, document))
    return found


def coverage(expectations: Sequence[Expectation]) -> dict[str, tuple[int, int]]:
    """Return (number of intervals with the outcome inside, number of all), by kind of figure."""
    inside_by_figure: dict[str, list[bool]] = {COST: [], "SLO attainment": []}
    for expectation in expectations:
        figure = COST if expectation.what == COST else "SLO attainment"
        inside_by_figure[figure].append(expectation.inside)
    return {figure: (sum(inside), len(inside)) for figure, inside in inside_by_figure.items()}


def _expectations_of_run(pk: int, name: str, result: _ComparedResult) -> list[Expectation]:
    """Return the intervals that one run predicted for its policies, each with its outcome."""
    levels_of_policy: dict[str, list[str]] = {}
    for level, policy in result.alternatives.items():
        if level in result.assurance and policy in result.policies:
            levels_of_policy.setdefault(policy, []).append(level)
    expectations = []
    for policy, levels in levels_of_policy.items():
        # The first level stands for all that recommend this policy.
        expected = result.assurance[levels[0]].expected
        measured = result.policies[policy]
        compared = [(COST, expected.cost_usd, measured.cost_usd)]
        for tier, tier_interval in expected.attainment.items():
            compared.append((tier, tier_interval, measured.slo_attainment.get(tier)))
        for what, interval, outcome in compared:
            if interval is not None and interval.low is not None and outcome is not None:
                expectations.append(Expectation(pk, name, tuple(levels), what, interval, outcome))
    return expectations
