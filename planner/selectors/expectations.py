"""Compare what comparisons expected of their recommendations with what happened in the window."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.domain.recommend.rule import TIE, Interval
from planner.models import Run

NEWEST = 50  # comparisons that are read
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
        """Return whether the interval contains the outcome; costs that tie count as equal."""
        return bool(self.expected.contains(self.outcome, TIE if self.what == COST else 0.0))


def expectations() -> list[Expectation]:
    """Return the expectations of the newest comparisons of past windows, newest first."""
    rows = (
        Run.objects.filter(kind=Run.Kind.COMPARE, state=Run.State.COMPLETED)
        .exclude(result__window__rank=None)
        .order_by("-pk")
        .values_list("pk", "name", "result__assurance", "result__alternatives", "result__policies")[
            :NEWEST
        ]
    )
    return [
        expectation
        for pk, name, *result in rows
        for expectation in _expectations_of_run(pk, name, *(part or {} for part in result))
    ]


def coverage(stated: Sequence[Expectation]) -> dict[str, tuple[int, int]]:
    """Return (intervals that contain the outcome, all intervals), for cost and for attainment."""
    inside: dict[str, list[bool]] = {COST: [], "SLO attainment": []}
    for each in stated:
        inside[COST if each.what == COST else "SLO attainment"].append(each.inside)
    return {name: (sum(within), len(within)) for name, within in inside.items()}


def _expectations_of_run(
    pk: int,
    name: str,
    assurance: Mapping[str, Any],
    alternatives: Mapping[str, str],
    policies: Mapping[str, Any],
) -> list[Expectation]:
    """Return what one run expected of its policies, beside what was measured in the end.

    ``assurance`` has the expected range of cost and of each tier's attainment by assurance level.
    ``alternatives`` is the policy of each level, ``policies`` has the figures of each policy.
    """
    by_policy: dict[str, list[str]] = {}
    for level, policy in alternatives.items():
        if level in assurance and policy in policies:
            by_policy.setdefault(policy, []).append(level)
    expectations = []
    for policy, levels in by_policy.items():
        expected = assurance[levels[0]]["expected"]
        measured = policies[policy]
        pairs = [(COST, expected["cost_usd"], measured["cost_usd"])] + [
            (tier, interval, measured["slo_attainment"].get(tier))
            for tier, interval in expected["attainment"].items()
        ]
        expectations += [
            Expectation(pk, name, tuple(levels), what, Interval(**interval), outcome)
            for what, interval, outcome in pairs
            if interval is not None and interval["low"] is not None and outcome is not None
        ]
    return expectations
