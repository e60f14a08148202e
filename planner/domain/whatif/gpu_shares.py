"""Limit GPU types to a share of a region's GPUs in a plan.

The limits are expressed as capacities of the scenario, so that a simulation can repeat the answer.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import floor
from typing import Any

from planner.domain.whatif.figures import PeakGpus, WhatIf
from planner.inputs.scenario.schema import Scenario

MAX_PLANNING_ROUNDS = (
    4  # of planning: other GPUs need another number of them, which changes the limits
)
ROUNDING = 1e-9  # a product of floats must not fall below a whole number


def capacities_for(
    scenario: Scenario, shares: Mapping[str, float], peaks: Iterable[PeakGpus]
) -> dict[str, Any]:
    """Return capacities, by address, that limit GPU types to a share of a region's peak GPUs.

    ``shares`` are by GPU type. ``peaks`` are those of the plan without these limits.
    """
    by_region = _by_region(peaks)
    limits: dict[str, Any] = {}
    for region in scenario.regions:
        rows, where = by_region.get(region.name, []), f"regions[{region.name}]"
        for gpu, share in shares.items():
            owned, on_spot = _allowed(rows, gpu, share)
            if gpu in region.capacity:
                available = int(region.capacity[gpu])
                limits[f"{where}.capacity[{gpu}]"] = min(available, owned)
            if gpu in region.spot:
                available = int(region.spot[gpu].capacity)
                limits[f"{where}.spot[{gpu}].capacity"] = min(available, on_spot)
    return limits


def _allowed(rows: Sequence[PeakGpus], gpu: str, share: float) -> tuple[int, int]:
    """Return (owned, spot) GPUs of a type that make up a ``share`` of a region's peak.

    They are in the proportion of the plan, which has the peaks ``rows``.
    """
    if not rows:
        return 0, 0
    used = {row.spot: row.most for row in rows if row.gpu == gpu}
    allowed = floor(share * rows[0].of_all + ROUNDING)
    on_spot = floor(allowed * used.get(True, 0) / max(1, sum(used.values())))
    return allowed - on_spot, on_spot


def share_notes(
    shares: Mapping[str, float], answer: WhatIf, limits: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a note on the share of each GPU type in each region at the peak.

    ``limits`` are the capacities that the ``shares`` leave, by address. If the answer has no plan,
    yield these instead.
    """
    if answer.totals is None and limits:
        capacities = ", ".join(f"{address} = {count}" for address, count in limits.items())
        yield f"The shares leave these capacities: {capacities}."
        return
    for gpu, share in shares.items():
        for region, rows in _by_region(answer.gpus).items():
            peak_gpus = sum(row.most for row in rows if row.gpu == gpu)  # owned and spot
            peak_of_all_types = rows[0].of_all  # the same in all rows of a region
            if peak_of_all_types:
                yield (
                    f"{gpu} in {region}: {peak_gpus:,} of {peak_of_all_types:,} GPUs at the peak, "
                    f"{peak_gpus / peak_of_all_types:.0%} (limit {share:.0%}, in whole replicas)."
                )


def _by_region(peaks: Iterable[PeakGpus]) -> dict[str, list[PeakGpus]]:
    """Return the peak GPUs grouped by region."""
    by_region: dict[str, list[PeakGpus]] = {}
    for row in peaks:
        by_region.setdefault(row.region, []).append(row)
    return by_region
