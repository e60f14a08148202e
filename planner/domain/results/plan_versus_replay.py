"""Compare the cost of a plan with the cost of its replay."""

from collections.abc import Sequence

from planner.domain.formats import MINUS
from planner.domain.results.equal_attainment_savings import CENT_USD, amount
from planner.domain.study import PolicyRun

MIN_DIFFERENCE_SHARE = 0.01  # that is reported, as a share of the plan's cost
PLAN_POLICIES = ("lt-i", "lt-h")  # policies that follow a plan on the scenario's own forecast


def plan_and_replay(runs: Sequence[PolicyRun]) -> list[str]:
    """Return a sentence, with the reason, for each run that costs more or less than its plan."""
    sentences = []
    for run in runs:
        planned_usd, summary = differing_plan_usd(run), run.summary
        if planned_usd is None:
            continue
        other_usd = summary.cost_usd - summary.after_cost_usd - planned_usd
        differences = (
            (summary.after_cost_usd, "for work that was left when the window ended"),
            (other_usd, "for other start times than planned, and for draining replicas"),
        )
        reasons = ", ".join(
            f"{MINUS if usd < 0 else ''}${amount(abs(usd))} {reason}"
            for usd, reason in differences
            if abs(usd) >= CENT_USD / 2
        )
        sentences.append(
            f"{run.label}: the plan says ${amount(planned_usd)} and its replay pays "
            f"${amount(summary.cost_usd)}: {reasons}."
        )
    return sentences


def differing_plan_usd(run: PolicyRun) -> float | None:
    """Return the cost of a run's plan in dollars, if the run itself costs more or less.

    None if both cost the same, or if the policy does not follow a plan on the scenario's forecast.
    """
    plan = run.plan
    if run.name not in PLAN_POLICIES or plan is None:
        return None
    planned_usd = sum(window.totals.usd for window in plan.windows) * plan.period_s / 3600
    differs = abs(run.summary.cost_usd - planned_usd) > MIN_DIFFERENCE_SHARE * planned_usd
    return planned_usd if differs else None
