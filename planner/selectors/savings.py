"""Compute the savings of each policy against a baseline that the user chooses."""

from typing import Any

from planner.domain.replay.equal_attainment import EQUAL_SLO as EQUAL

MEASURES = ("gpu_hours", "cost_usd", "energy_kwh", "carbon_kg")


def savings(result: dict[str, Any], baseline: str) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return {policy: {measure: {"value", "baseline", "saved", "fraction", "equal"}}}.

    A negative saving is a loss. ``fraction`` is a share of the baseline's value, None if that is
    zero. ``equal`` is the fraction of the cost at the baseline's SLO attainment. It is None if the
    attainment is equal or the cost is not known.
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
                "equal": saving_at_equal(figures, base) if measure == "cost_usd" else None,
            }
            for measure in MEASURES
        }
        for name, figures in policies.items()
    }


def saving_at_equal(figures: dict[str, Any], base: dict[str, Any]) -> float | None:
    """Return the saving in cost of a policy over another at equal SLO attainment.

    It uses domain.results.equal_attainment_savings on two policies of a stored result.
    """
    tiers, base_tiers = figures.get("slo_attainment") or {}, base.get("slo_attainment") or {}
    unequal = any(
        share is not None
        and (other_share := base_tiers.get(tier)) is not None
        and abs(share - other_share) > EQUAL
        for tier, share in tiers.items()
    )
    flat, flat_base = figures.get("flat_usd"), base.get("flat_usd")
    if not (unequal and flat and flat_base and base["cost_usd"]):
        return None
    return float(1 - figures["cost_usd"] * flat_base / flat / base["cost_usd"])
