"""What a comparison recommended, and what became of it in the window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.domain.results.equal_attainment_savings import saving
from planner.domain.results.ranking import (
    PolicyComparison,
    shortfall,
)
from planner.domain.study import PolicyRun

# By what the recommended policy's cost is held against them.
OTHERS = {"runnable_flat": "flat-before", "flat": "flat-min", "perfect": "lt-i-perfect"}


@dataclass(frozen=True, slots=True)
class Decision:
    """``figures``: the policy, what it cost, its worst tier, and its cost over that of others, at
    equal attainment (methods.md X4) and as paid.

    ``seer`` is the policy that turned out cheapest in the window of those that can be run, each as
    the days before tuned it, and ``seer_over_flat`` its cost over the smallest flat fleet found in
    hindsight: whatever chooses among them and sees the past alone does no better. What
    ``over_flat`` is above it is the choice's, the rest nobody knew."""

    name: str
    diurnal: bool
    figures: dict[str, Any]


def decided(name: str, diurnal: bool, comparison: PolicyComparison) -> Decision:
    """Of a comparison that recommends something."""
    assert comparison.recommended is not None
    take = comparison.recommended
    taken = comparison.run(take.policy)
    by_name = {run.name: run for run in comparison.runs}
    ratios: dict[str, float | None] = {}
    for key, other in OTHERS.items():
        base = by_name.get(other)
        ratios[f"over_{key}"] = _over(taken, base)
        ratios[f"paid_over_{key}"] = (
            None if base is None else taken.summary.cost_usd / base.summary.cost_usd
        )
    seer = _seer(taken, comparison)
    ratios["over_seer"] = _over(taken, seer)
    ratios["seer_over_flat"] = _over(seer, by_name.get("flat-min"))
    attained = [share for share in taken.summary.slo_attainment.values() if share is not None]
    return Decision(
        name,
        diurnal,
        {
            "policy": take.policy,
            "parameters": take.parameters,
            "seer": None if seer is None else seer.name,
            "usd": taken.summary.cost_usd,
            "attainment": min(attained),
            "shortfall_points": 100 * shortfall(taken),
            **ratios,
        },
    )


def _over(run: PolicyRun | None, base: PolicyRun | None) -> float | None:
    """What one costs over another, at equal attainment."""
    saved = None if run is None or base is None else saving(run, base)
    return None if saved is None else 1 - saved


def _seer(taken: PolicyRun, comparison: PolicyComparison) -> PolicyRun | None:
    """The cheapest at equal attainment of those that can be run and met every tier."""
    able = [run for run in comparison.runs if run.meets_slo and not run.traits.knows_what_came]
    overs = {run.name: over for run in able if (over := _over(run, taken)) is not None}
    return min(
        (run for run in able if run.name in overs), key=lambda r: overs[r.name], default=None
    )
