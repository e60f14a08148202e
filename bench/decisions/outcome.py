"""What a comparison recommended, and what became of it in the window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from planner.studies.results.equal_slo import saving
from planner.studies.results.verdict import PolicyComparison, shortfall

# By what the recommended policy's cost is held against them.
OTHERS = {"runnable_flat": "flat-before", "flat": "flat-min", "perfect": "lt-i-perfect"}


@dataclass(frozen=True, slots=True)
class Decision:
    """``figures``: the policy, what it cost, its worst tier, and its cost over that of others, at
    equal attainment (methods.md X4) and as paid."""

    name: str
    diurnal: bool
    figures: dict[str, Any]


def decided(name: str, diurnal: bool, comparison: PolicyComparison) -> Decision:
    """Of a comparison that recommends something."""
    assert comparison.recommended is not None
    take = comparison.recommended
    own = comparison.run(take.policy)
    by_name = {run.name: run for run in comparison.runs}
    ratios: dict[str, float | None] = {}
    for key, other in OTHERS.items():
        base = by_name.get(other)
        saved = None if base is None else saving(own, base)
        ratios[f"over_{key}"] = None if saved is None else 1 - saved
        ratios[f"paid_over_{key}"] = (
            None if base is None else own.summary.cost_usd / base.summary.cost_usd
        )
    attained = [share for share in own.summary.slo_attainment.values() if share is not None]
    return Decision(
        name,
        diurnal,
        {
            "policy": take.policy,
            "parameters": take.parameters,
            "usd": own.summary.cost_usd,
            "attainment": min(attained),
            "shortfall_points": 100 * shortfall(own),
            **ratios,
        },
    )
