"""Look up GPU prices, and combine price, carbon and PUE of cloud regions."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from planner.inputs.catalogue import carbon
from planner.inputs.catalogue.fact_types import CatalogueRegion, Grid, Price
from planner.inputs.catalogue.files import read
from simulation.performance.specs import Provenance


@cache
def prices() -> tuple[Price, ...]:
    """Return every offer of a GPU type in a region of a provider, on demand and spot."""
    document = read("prices")
    provenance = Provenance("published", document["source"])
    return tuple(
        Price(offer["provider"], region, offer["gpu"], on_demand, spot, provenance)
        for offer in document["offers"]
        for region, (on_demand, spot) in offer["usd_per_gpu_hour"].items()
    )


@cache
def regions() -> Mapping[str, CatalogueRegion]:
    """Return cloud regions by the provider's name for them, built once.

    The regions of regions.yaml come first. All others with both a price and a carbon factor follow.
    """
    document = read("regions")
    offers: dict[tuple[str, str], list[Price]] = {}
    for price in prices():
        offers.setdefault((price.provider, price.region), []).append(price)
    by_name = {entry["name"]: _curated(entry, document["sources"]) for entry in document["regions"]}
    for grid in carbon.grids():
        if (grid.provider, grid.name) in offers and grid.name not in by_name:
            by_name[grid.name] = _region_of_grid(grid, document)
    return MappingProxyType(
        {
            name: _with_offers(region, offers.get((region.provider, name), []))
            for name, region in by_name.items()
        }
    )


def _curated(entry: dict[str, Any], texts: dict[str, str]) -> CatalogueRegion:
    """Build a region from its ``entry`` in regions.yaml.

    ``texts`` maps the name of a source, which the figures cite, to its text.
    """
    figures = {name: entry[name] for name in ("carbon_g_per_kwh", "pue")}
    figures |= entry["usd_per_gpu_hour"]
    values = {name: float(figure["value"]) for name, figure in figures.items()}
    mean, pue = values.pop("carbon_g_per_kwh"), values.pop("pue")
    grid = carbon.grid(entry["name"], entry["provider"])
    return CatalogueRegion(
        name=entry["name"],
        provider=entry["provider"],
        location=entry["location"],
        carbon_g_per_kwh=mean,
        pue=pue,
        usd_per_gpu_hour=values,
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
    """Return the carbon by UTC hour with the yearly ``mean`` (g/kWh); None without a cycle."""
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
