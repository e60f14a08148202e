"""Compute the savings of each policy against a baseline that the user chooses."""

from collections.abc import Mapping

from planner.domain.replay.equal_attainment import EQUAL_SLO as EQUAL
from planner.domain.results.stored import StoredPolicy

MEASURES = ("gpu_hours", "cost_usd", "energy_kwh", "carbon_kg")


def savings(
    policies: Mapping[str, StoredPolicy], baseline: str
) -> dict[str, dict[str, dict[str, float | None]]]:
    """Return {policy: {measure: {"value", "baseline", "saved", "fraction", "equal"}}}.

    A negative saving is a loss. ``fraction`` is a share of the baseline's value, None if that value
    is zero. ``equal`` is the share of cost saved at the baseline's SLO attainment. It is None if
    the attainments are equal or a cost is not known.
    """
    base = policies[baseline]
    savings: dict[str, dict[str, dict[str, float | None]]] = {}
    for name, policy in policies.items():
        for measure in MEASURES:
            value, base_value = getattr(policy, measure), getattr(base, measure)
            saved = base_value - value
            savings.setdefault(name, {})[measure] = {
                "value": value,
                "baseline": base_value,
                "saved": saved,
                "fraction": saved / base_value if base_value else None,
                "equal": saving_at_equal(policy, base) if measure == "cost_usd" else None,
            }
    return savings


def saving_at_equal(policy: StoredPolicy, base: StoredPolicy) -> float | None:
    """Return the saving in cost of a policy over another at equal SLO attainment, as a share.

    Each cost is divided by that of a static fleet with the same attainment (``flat_usd``). None if
    the attainments are equal, or if a cost is not known.
    """
    pairs = (
        (share, base.slo_attainment.get(tier)) for tier, share in policy.slo_attainment.items()
    )
    is_unequal = any(
        share is not None and other is not None and abs(share - other) > EQUAL
        for share, other in pairs
    )
    flat, flat_base, cost = policy.flat_usd, base.flat_usd, policy.cost_usd
    if not (is_unequal and flat and flat_base and base.cost_usd) or cost is None:
        return None
    return 1 - cost * flat_base / flat / base.cost_usd
