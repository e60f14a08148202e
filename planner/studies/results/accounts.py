"""What a plan says that it costs, beside what its replay pays."""

from __future__ import annotations

from collections.abc import Sequence

from planner.studies.results.verdict import amount
from planner.studies.values import PolicyRun

APART = 0.01  # of the plan's cost, from which on it is said
FOLLOWS = ("lt-i", "lt-h")  # a plan by the clock, on the scenario's own forecast


def plan_beside_replay(runs: Sequence[PolicyRun]) -> list[str]:
    """A sentence where the two differ, and why."""
    out = []
    for run in runs:
        plan, told = run.plan, run.summary
        if run.name not in FOLLOWS or plan is None:
            continue
        says = sum(window.totals.usd for window in plan.windows) * plan.period_s / 3600
        if abs(told.cost_usd - says) <= APART * says:
            continue
        rest = told.cost_usd - told.after_cost_usd - says
        out.append(
            f"{run.label}: the plan says ${amount(says)} and its replay pays "
            f"${amount(told.cost_usd)}: ${amount(told.after_cost_usd)} for work that was left when "
            f"the window ended, {'-' * (rest < 0)}${amount(abs(rest))} for starts that took longer "
            "or less than planned and instances that still drained."
        )
    return out
