"""Compare the cost of a plan with the cost of its replay."""

from collections.abc import Sequence

from planner.domain.formats import MINUS
from planner.domain.results.equal_attainment_savings import amount
from planner.domain.study import PolicyRun

APART = 0.01  # smallest difference that is reported, as a share of the plan's cost
CENT = 0.005  # dollars, of rounding
FOLLOWS = ("lt-i", "lt-h")  # policies that follow a plan on the scenario's own forecast


def plan_and_replay(runs: Sequence[PolicyRun]) -> list[str]:
    """Return a sentence, with the reason, for each run that costs more or less than its plan."""
    sentences = []
    for run in runs:
        planned_usd, summary = differing_plan_usd(run), run.summary
        if planned_usd is None:
            continue
        other_usd = summary.cost_usd - summary.after_cost_usd - planned_usd
        reasons = [
            (summary.after_cost_usd, "for work that was left when the window ended"),
            (other_usd, "for other start times than planned, and for draining replicas"),
        ]  # fmt: skip
        parts = ", ".join(
            f"{MINUS * (usd < 0)}${amount(abs(usd))} {what}"
            for usd, what in reasons
            if abs(usd) >= CENT
        )
        sentences.append(
            f"{run.label}: the plan says ${amount(planned_usd)} and its replay pays "
            f"${amount(summary.cost_usd)}: {parts}."
        )
    return sentences


def differing_plan_usd(run: PolicyRun) -> float | None:
    """Return the cost of a run's plan in dollars, if the run itself costs more or less.

    Return None if they agree, or if the policy does not follow a plan without changes.
    """
    plan = run.plan
    if run.name not in FOLLOWS or plan is None:
        return None
    planned_usd = sum(window.totals.usd for window in plan.windows) * plan.period_s / 3600
    return planned_usd if abs(run.summary.cost_usd - planned_usd) > APART * planned_usd else None
