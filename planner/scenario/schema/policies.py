"""The policies to compare, with their parameters."""

from __future__ import annotations

from typing import Literal

from planner.scenario.schema.types import (
    Delay,
    Section,
    Share,
)

PolicyName = Literal[
    "today", "flat-peak", "flat-min", "reactive", "lt-i", "lt-i-last-value", "lt-i-perfect"
]
POLICIES: dict[PolicyName, str] = {
    "today": "Today's fleet",
    "flat-peak": "Flat at peak",
    "flat-min": "Smallest flat fleet that meets the SLO",
    "reactive": "Unified reactive",
    "lt-i": "Planned (LT-I)",
    "lt-i-last-value": "Planned on last value",
    "lt-i-perfect": "Planned on a perfect forecast",
}


class Policy(Section):
    """A policy to compare, with its parameters; what is left out has the source's value."""

    name: PolicyName
    scale_out_above: Share | None = None  # reactive: effective memory utilisation
    scale_in_below: Share | None = None
    cooldown_s: Delay | None = None
