"""What a plan says that it costs, beside what its replay pays."""

from __future__ import annotations

from collections.abc import Sequence

from planner.studies.results.equal_slo import amount
from planner.studies.values import PolicyRun

APART = 0.01  # of the plan's cost, from which on it is said
CENT = 0.005  # dollars, of rounding
FOLLOWS = ("lt-i", "lt-h")  # a plan by the clock, on the scenario's own forecast


def plan_beside_replay(runs: Sequence[PolicyRun]) -> list[str]:
    """A sentence where the two differ, and why."""
    out = []
    for run in runs:
        says, summary = plan_says(run), run.summary
        if says is None:
            continue
        rest = summary.cost_usd - summary.after_cost_usd - says
        why = [
            (summary.after_cost_usd, "for work that was left when the window ended"),
            (rest, "for starts that took longer or less than planned and instances that still "
             "drained"),
        ]  # fmt: skip
        parts = ", ".join(
            f"{'-' * (usd < 0)}${amount(abs(usd))} {what}" for usd, what in why if abs(usd) >= CENT
        )
        out.append(
            f"{run.label}: the plan says ${amount(says)} and its replay pays "
            f"${amount(summary.cost_usd)}: {parts}."
        )
    return out


def plan_says(run: PolicyRun) -> float | None:
    """The dollars that its plan says, where its replay pays others; None of what has no such
    plan."""
    plan = run.plan
    if run.name not in FOLLOWS or plan is None:
        return None
    says = sum(window.totals.usd for window in plan.windows) * plan.period_s / 3600
    return says if abs(run.summary.cost_usd - says) > APART * says else None
