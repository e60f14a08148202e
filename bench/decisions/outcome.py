"""What a comparison recommended, and what became of it in the window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

RUNNABLE, HINDSIGHT, PERFECT = "flat-before", "flat-min", "lt-i-perfect"


@dataclass(frozen=True, slots=True)
class Decision:
    """``figures``: the policy, what it cost, its worst tier, and its cost over that of others."""

    name: str
    diurnal: bool
    figures: dict[str, Any]


def decided(name: str, diurnal: bool, document: dict[str, Any]) -> Decision:
    """From the document of a run of ``compare``."""
    policies = document["policies"]
    chosen = document["recommended"]["policy"]
    own = policies[chosen]
    tiers = [tier for tier in own["tiers"].values() if tier["attainment"] is not None]
    return Decision(
        name,
        diurnal,
        {
            "policy": chosen,
            "parameters": document["recommended"]["parameters"],
            "usd": own["cost_usd"],
            "attainment": min(tier["attainment"] for tier in tiers),
            "shortfall_points": max(
                0.0, *(100 * (tier["target"] - tier["attainment"]) for tier in tiers)
            ),
            "over_runnable_flat": _over(policies, chosen, RUNNABLE),
            "over_flat": _over(policies, chosen, HINDSIGHT),
            "over_perfect": _over(policies, chosen, PERFECT),
        },
    )


def _over(policies: dict[str, Any], chosen: str, other: str) -> float | None:
    """Cost over that of another policy; None where it was not run."""
    if other not in policies:
        return None
    return float(policies[chosen]["cost_usd"] / policies[other]["cost_usd"])
