"""Split a tier's SLO between disaggregated prefill and decode pools."""

from dataclasses import replace

from simulation.fleet import Tier

# Exponent of the attainment target for prefill; decode gets the rest. Prefill may miss more often,
# because a batch evens out gaps and few late TBTs cost little.
LATE_PROMPTS = 0.9


def role_tier(tier: Tier, role: str) -> Tier:
    """Return the tier for prefill or for decode alone.

    The allowed misses are shared between the two. If they are independent, both together meet the
    original tier.
    """
    if role == "both":
        return tier
    part = LATE_PROMPTS if role == "prefill" else 1.0 - LATE_PROMPTS
    return replace(tier, attainment=tier.attainment**part)
