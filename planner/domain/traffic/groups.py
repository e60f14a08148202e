"""Group the tiers that are forecast and planned together, and sum their demand."""

from collections.abc import Iterable, Set
from dataclasses import dataclass

import numpy as np

from forecasting.demand import INPUT_TOKENS, DemandSeries, SeriesKey
from planner.domain.traffic.traffic import Traffic
from planner.inputs.scenario.build import Hardware

INTERACTIVE, DEFERRABLE = "interactive", "deferrable"  # names of sums over such tiers
Placed = tuple[tuple[int, int], DemandSeries]  # indices of model and region, and their demand


@dataclass(frozen=True, slots=True)
class Group:
    """Interactive tiers that are forecast and planned together.

    ``target`` is the highest SLO attainment target of the tiers.
    """

    name: str
    tiers: frozenset[str]
    target: float


def interactive(hardware: Hardware) -> set[str]:
    """Return the names of the interactive tiers."""
    return {tier.name for tier in hardware.tiers if not tier.deferrable}


def deferrable(hardware: Hardware) -> set[str]:
    """Return the names of the deferrable tiers."""
    return {tier.name for tier in hardware.tiers if tier.deferrable}


def groups_of(hardware: Hardware, *, one_per_tier: bool) -> tuple[Group, ...]:
    """Return one group of all interactive tiers; with ``one_per_tier``, one group per tier.

    Without interactive tiers there is no group.
    """
    tiers = [tier for tier in hardware.tiers if not tier.deferrable]
    if one_per_tier:
        return tuple(Group(tier.name, frozenset((tier.name,)), tier.attainment) for tier in tiers)
    if not tiers:
        return ()
    names = frozenset(tier.name for tier in tiers)
    return (Group(INTERACTIVE, names, max(tier.attainment for tier in tiers)),)


def series_of(traffic: Traffic, group: Group, unit: str = INPUT_TOKENS) -> list[Placed]:
    """Return the summed demand of a group of tiers, per model and region.

    ``unit`` is REQUESTS, INPUT_TOKENS or OUTPUT_TOKENS. Models and regions without demand are
    omitted.
    """
    return by_model_and_region(traffic, group.tiers, group.name, unit)


def by_model_and_region(
    traffic: Traffic, tiers: Set[str], name: str = INTERACTIVE, unit: str = INPUT_TOKENS
) -> list[Placed]:
    """Return the summed demand of ``tiers`` per model and region in ``unit``.

    ``name`` replaces the tier in the keys of the series. Models and regions without demand are
    omitted.
    """
    placed = []
    for m, model in enumerate(traffic.models):
        for r, region in enumerate(traffic.regions):
            summed = {SeriesKey(model, region, tier) for tier in tiers}
            series = traffic.demand.total(SeriesKey(model, region, name), unit, summed.__contains__)
            if np.nansum(series.values) > 0:
                placed.append(((m, r), series))
    return placed


def tier_label(tier: str, every: Iterable[str]) -> str:
    """Return the label of a forecast's ``tier``: "all interactive tiers" if it sums them.

    ``every`` has the tiers of all forecasts. If it names a single tier, each tier is forecast
    alone, and a tier called "interactive" is such a tier.
    """
    sums = {INTERACTIVE, DEFERRABLE}
    return f"all {tier} tiers" if tier in sums and sums.issuperset(every) else tier
