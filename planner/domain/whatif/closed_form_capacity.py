"""Compute a replica's capacity by closed forms alone (simulation.sizing.batch_sizing).

This is fast, and accurate enough for the relative effect of changed limits.
"""

from dataclasses import replace

import numpy as np

from planner.domain.sizing.curves import strictest_tiers, workload_of
from planner.domain.traffic.lengths import Lengths
from planner.inputs.scenario.build import Hardware
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.sizing.batch_sizing import size_pool
from simulation.sizing.capacity import SENDERS
from simulation.sizing.pd_slo_split import role_tier
from simulation.sizing.trial import SharedPrompts
from simulation.sizing.workload import Workload

PRECISION = 0.01  # relative tolerance of the rate; the closed forms have a larger error


def closed_rps(
    hardware: Hardware, m: int, g: int, lengths: Lengths, shared: SharedPrompts | None = None
) -> float:
    """Return the requests/s of one instance at its strictest interactive tier; NaN if no rate.

    If serving caches prefixes, cached tokens of ``shared`` need no prefill. Blocks are ignored.
    """
    work = workload_of(hardware, m, lengths, shared)
    tiers = strictest_tiers(hardware.limits_of(m))
    try:
        return min((_max_rps(hardware, m, g, work, tier) for tier in tiers), default=np.nan)
    except SimulationError:
        return np.nan


def _max_rps(hardware: Hardware, m: int, g: int, work: Workload, tier: Tier) -> float:
    """Return the closed-form capacity of one instance within a tier, in requests/s."""
    role = hardware.columns[g].role
    link = next((link for (model, _), link in hardware.links.items() if model == m), None)
    part = role_tier(tier, role)
    # A prefill or decode instance alone cannot be held to limits of the other phase.
    if role != "both":
        part = replace(part, e2e_s=None)
    if role == "prefill":
        part = replace(part, tbt_s=None)
    elif role == "decode":
        part = replace(part, ttft_s=None)
    return size_pool(
        hardware.profiles[m, g], work, part, role=role, explain=False, precision=PRECISION,
        senders=SENDERS, link=link if role == "decode" else None,
    ).max_rps  # fmt: skip
