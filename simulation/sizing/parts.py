"""What of a tier's limits prefill has to keep, and what decode, where the two are apart."""

from __future__ import annotations

from dataclasses import replace

from simulation.fleet import Tier

# Of the requests that may miss, those whose TTFT may be late where prefill and decode are apart:
# the rest may miss their TBT. A batch evens gaps out: that few of them are late costs little.
LATE_PROMPTS = 0.9


def in_part(tier: Tier, role: str) -> Tier:
    """The tier for prefill or for decode by itself: what may be late is shared between the two, so
    that both together, taken as independent, meet it."""
    if role == "both":
        return tier
    part = LATE_PROMPTS if role == "prefill" else 1.0 - LATE_PROMPTS
    return replace(tier, attainment=tier.attainment**part)
