"""Savings of each policy against a baseline the user chooses."""

from __future__ import annotations

from typing import Any

MEASURES = ("gpu_hours", "cost_usd", "energy_kwh", "carbon_kg")


def savings(result: dict[str, Any], baseline: str) -> dict[str, dict[str, dict[str, float | None]]]:
    """Policy to measure to {"value", "baseline", "saved", "fraction"}; a negative saving is a loss.

    ``fraction`` is of the baseline's value, None where that is zero.
    """
    policies: dict[str, dict[str, Any]] = result["policies"]
    base = policies[baseline]
    return {
        name: {
            measure: {
                "value": figures[measure],
                "baseline": base[measure],
                "saved": base[measure] - figures[measure],
                "fraction": (base[measure] - figures[measure]) / base[measure]
                if base[measure]
                else None,
            }
            for measure in MEASURES
        }
        for name, figures in policies.items()
    }
