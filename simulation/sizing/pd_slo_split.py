"""Split a tier's SLO between disaggregated prefill and decode pools."""

from dataclasses import replace

from simulation.fleet import Tier

# Exponent of the attainment target for prefill; decode gets the rest. Prefill may miss more often,
# because a batch evens out gaps and few late TBTs cost little.
PREFILL_EXPONENT = 0.9


def role_tier(tier: Tier, role: str) -> Tier:
    """Return the tier that prefill or decode alone must meet.

    Both attainment targets are higher, and their product is that of the tier. If misses of the two
    are independent, both together therefore meet the original tier.
    """
    if role == "both":
        return tier
    exponent = PREFILL_EXPONENT if role == "prefill" else 1.0 - PREFILL_EXPONENT
    return replace(tier, attainment=tier.attainment**exponent)


def isolated_tier(tier: Tier, role: str) -> Tier:
    """Return ``role_tier`` with only the limit that the role alone decides: TTFT or TBT."""
    part = role_tier(tier, role)
    if role == "prefill":
        return replace(part, tbt_s=None, e2e_s=None)
    return replace(part, ttft_s=None, e2e_s=None) if role == "decode" else part
