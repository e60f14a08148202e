"""Combine price, carbon and PUE of cloud regions."""

from dataclasses import replace
from functools import cache
from typing import Any

from planner.inputs.catalogue import carbon
from planner.inputs.catalogue.fact_types import CatalogueRegion, Grid, Price
from planner.inputs.catalogue.files import read
from planner.inputs.catalogue.gpu_prices import prices
from simulation.performance.specs import Provenance


def regions() -> dict[str, CatalogueRegion]:
    """Return cloud regions by the provider's name for them.

    The regions of regions.yaml come first. All others with both a price and a carbon factor follow.
    """
    return dict(_regions())


@cache
def _regions() -> dict[str, CatalogueRegion]:
    """Build the regions, those of regions.yaml first."""
    document = read("regions")
    offers: dict[tuple[str, str], list[Price]] = {}
    for price in prices():
        offers.setdefault((price.provider, price.region), []).append(price)
    regions = {}
    for entry in document["regions"]:
        offered = offers.get((entry["provider"], entry["name"]), [])
        regions[entry["name"]] = _with_offers(_curated(entry, document["sources"]), offered)
    for grid in carbon.grids():
        offered = offers.get((grid.provider, grid.name), [])
        if offered and grid.name not in regions:
            regions[grid.name] = _with_offers(_region_of_grid(grid, document), offered)
    return regions


def _curated(entry: dict[str, Any], texts: dict[str, str]) -> CatalogueRegion:
    """Build a region of regions.yaml; ``texts`` has the source that each figure cites by a name."""
    figures = {
        "carbon_g_per_kwh": entry["carbon_g_per_kwh"],
        "pue": entry["pue"],
        **entry["usd_per_gpu_hour"],
    }
    mean = float(figures["carbon_g_per_kwh"]["value"])
    grid = carbon.grid(entry["name"], entry["provider"])
    return CatalogueRegion(
        name=entry["name"],
        provider=entry["provider"],
        location=entry["location"],
        carbon_g_per_kwh=mean,
        pue=float(figures["pue"]["value"]),
        usd_per_gpu_hour={
            gpu: float(price["value"]) for gpu, price in entry["usd_per_gpu_hour"].items()
        },
        sources={
            name: Provenance(figure["kind"], texts[figure["source"]])
            for name, figure in figures.items()
        },
        carbon_hourly=_hourly(grid, mean),
        cycle=grid.cycle,
    )


def _region_of_grid(grid: Grid, document: dict[str, Any]) -> CatalogueRegion:
    """Build a region from its carbon factor alone, with the PUE of its provider."""
    pue = document["pue_of"].get(grid.name) or document["pue_of"][grid.provider]
    source = Provenance(pue["kind"], document["sources"][pue["source"]])
    return CatalogueRegion(
        name=grid.name,
        provider=grid.provider,
        location=grid.location,
        carbon_g_per_kwh=grid.carbon_g_per_kwh,
        pue=float(pue["value"]),
        usd_per_gpu_hour={},
        sources={"carbon_g_per_kwh": grid.provenance, "pue": source},
        carbon_hourly=_hourly(grid, grid.carbon_g_per_kwh),
        cycle=grid.cycle,
    )


def _hourly(grid: Grid, mean: float) -> tuple[float, ...] | None:
    return None if grid.cycle is None else carbon.hourly(grid.cycle, mean)


def _with_offers(region: CatalogueRegion, offers: list[Price]) -> CatalogueRegion:
    """Add on-demand prices of further GPU types, and all spot prices."""
    usd, spot, sources = dict(region.usd_per_gpu_hour), {}, dict(region.sources)
    for price in offers:
        if price.usd_per_gpu_hour is not None and price.gpu not in usd:
            usd[price.gpu] = price.usd_per_gpu_hour
            sources[price.gpu] = price.provenance
        if price.spot_usd_per_gpu_hour is not None:
            spot[price.gpu] = price.spot_usd_per_gpu_hour
            sources[f"spot {price.gpu}"] = price.provenance
    return replace(region, usd_per_gpu_hour=usd, spot_usd_per_gpu_hour=spot, sources=sources)
