"""Limit GPU types to a share of a region's GPUs in a plan.

The limits are capacities, which a scenario has too, so a simulation can repeat the answer.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import floor
from typing import Any

from planner.domain.whatif.figures import PeakGpus, WhatIf
from planner.inputs.scenario.schema import Scenario

ROUNDS = 4  # a plan on other GPUs needs another number of them, which changes the shares


def capacities_for(
    scenario: Scenario, shares: Mapping[str, float], peaks: Iterable[PeakGpus]
) -> dict[str, Any]:
    """Return capacities, by address, that limit GPU types to a share of a region's peak GPUs.

    ``shares`` are by GPU type. Owned and spot GPUs share the limit in the plan's proportion.
    """
    by_region, limits = _by_region(peaks), dict[str, Any]()
    for region in scenario.regions:
        rows = by_region.get(region.name, [])
        for gpu, share in shares.items():
            used = {row.spot: row.most for row in rows if row.gpu == gpu}
            allowed = floor(share * rows[0].of_all + 1e-9) if rows else 0
            on_spot = floor(allowed * used.get(True, 0) / max(1, sum(used.values())))
            where = f"regions[{region.name}]"
            if gpu in region.capacity:
                most = int(region.capacity[gpu])
                limits[f"{where}.capacity[{gpu}]"] = min(most, allowed - on_spot)
            if gpu in region.spot:
                most = int(region.spot[gpu].capacity)
                limits[f"{where}.spot[{gpu}].capacity"] = min(most, on_spot)
    return limits


def share_notes(
    shares: Mapping[str, float], answer: WhatIf, limits: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the share of each type and region; without a plan, the capacities that are left."""
    if answer.totals is None and limits:
        left = ", ".join(f"{address} = {count}" for address, count in limits.items())
        yield f"The shares leave these capacities: {left}."
        return
    for gpu, share in shares.items():
        for region, rows in _by_region(answer.gpus).items():
            peak_gpus, of_all = sum(row.most for row in rows if row.gpu == gpu), rows[0].of_all
            if of_all:
                yield (
                    f"{gpu} in {region}: {peak_gpus:,} of {of_all:,} GPUs at the peak, "
                    f"{peak_gpus / of_all:.0%} (limit {share:.0%}, in whole replicas)."
                )


def _by_region(peaks: Iterable[PeakGpus]) -> dict[str, list[PeakGpus]]:
    """Return the peak GPUs grouped by region."""
    by_region: dict[str, list[PeakGpus]] = {}
    for row in peaks:
        by_region.setdefault(row.region, []).append(row)
    return by_region
