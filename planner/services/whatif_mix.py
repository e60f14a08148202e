"""Limit GPU types to a share of a plan.

The limits are capacities, which a scenario has too. An answer in place can thus be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import floor
from typing import Any

from planner.domain.whatif.answer import (
    GpusMost,
    WhatIf,
)
from planner.inputs.scenario.schema import Scenario

ROUNDS = 4  # a plan on other GPUs needs another number of them, which changes the shares
Caps = dict[tuple[str, str, bool], int]  # largest number of GPUs, by region, type and whether spot


def held(
    scenario: Scenario, mix: Mapping[str, float], answered: Callable[[dict[str, Any]], WhatIf]
) -> tuple[WhatIf, Caps]:
    """Return the plan with each type of ``mix`` limited to its share, and the capacities for it.

    The share is of the most GPUs that a region has at a time. ``answered`` plans with capacities.
    """
    answer, caps = answered({}), Caps()
    for _ in range(ROUNDS):
        now = _caps(scenario, mix, answer.gpus)
        if answer.totals is None or now == caps:
            break
        answer, caps = answered(addresses(now)), now
    return answer, caps


def addresses(caps: Caps) -> dict[str, Any]:
    """Return the capacities as values of a scenario."""
    return {
        f"regions[{region}].{f'spot[{gpu}].capacity' if spot else f'capacity[{gpu}]'}": count
        for (region, gpu, spot), count in caps.items()
    }


def words(mix: Mapping[str, float], answer: WhatIf, caps: Caps) -> tuple[str, ...]:
    """Return a sentence for each share and region; without a plan, what the shares leave."""
    sentences = []
    if answer.totals is None and caps:
        left = [f"{count:,} {gpu} in {region}" for (region, gpu, _), count in caps.items()]
        return (f"The shares leave at most {', '.join(left)}.",)
    for name, share in mix.items():
        for region, rows in _by_region(answer.gpus).items():
            most, of = sum(row.most for row in rows if row.gpu == name), rows[0].of_all
            if of:
                sentences.append(
                    f"{name} in {region}: at most {most:,} of {of:,} GPUs, {most / of:.0%} "
                    f"({share:.0%} asked for, in whole replicas)."
                )
    return tuple(sentences)


def _caps(scenario: Scenario, mix: Mapping[str, float], gpus: Iterable[GpusMost]) -> Caps:
    """Return the GPUs of each type, divided into owned and spot ones as in the plan."""
    by_region, caps = _by_region(gpus), Caps()
    for region in scenario.regions:
        rows = by_region.get(region.name, [])
        for name, share in mix.items():
            most_of = {row.spot: row.most for row in rows if row.gpu == name}
            allowed = floor(share * rows[0].of_all + 1e-9) if rows else 0
            of_spot = most_of.get(True, 0) / max(1, sum(most_of.values()))
            spot = floor(of_spot * allowed)
            if name in region.capacity:
                most = int(region.capacity[name])
                caps[region.name, name, False] = min(most, allowed - spot)
            if name in region.spot:
                most = int(region.spot[name].capacity)
                caps[region.name, name, True] = min(most, spot)
    return caps


def _by_region(gpus: Iterable[GpusMost]) -> dict[str, list[GpusMost]]:
    by_region: dict[str, list[GpusMost]] = {}
    for row in gpus:
        by_region.setdefault(row.region, []).append(row)
    return by_region
