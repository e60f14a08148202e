"""Look up GPU prices, and combine price, carbon and PUE of cloud regions."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

from planner.inputs.catalogue import carbon
from planner.inputs.catalogue.carbon import Grid
from planner.inputs.catalogue.files import read
from simulation.performance.specs import KINDS, Provenance


@dataclass(frozen=True, slots=True)
class CatalogueRegion:
    """A region of a cloud provider, with prices where they are known.

    ``sources`` has the keys ``carbon_g_per_kwh``, ``pue``, every GPU type with an on-demand price,
    and ``spot GPU`` for spot prices. ``carbon_hourly`` has 24 yearly means by UTC hour if the
    grid's cycle is known.
    """

    name: str
    provider: str
    location: str
    carbon_g_per_kwh: float  # yearly mean of the grid
    pue: float
    usd_per_gpu_hour: Mapping[str, float]  # on demand, by GPU type
    sources: Mapping[str, Provenance]
    spot_usd_per_gpu_hour: Mapping[str, float] = field(default_factory=dict)
    carbon_hourly: tuple[float, ...] | None = None
    cycle: str | None = None  # grid that gives the daily cycle of ``carbon_hourly``

    @property
    def provenance(self) -> Provenance:
        """Return the least certain kind and every distinct source of the region's figures."""
        kind = max((source.kind for source in self.sources.values()), key=KINDS.index)
        texts = dict.fromkeys(source.source for source in self.sources.values())
        return Provenance(kind, "; ".join(texts))


@dataclass(frozen=True, slots=True)
class Price:
    """The hourly price of one GPU. None: no such offer is known."""

    provider: str
    region: str
    gpu: str
    usd_per_gpu_hour: float | None  # on demand; null: no known offer
    spot_usd_per_gpu_hour: float | None  # null: no known offer
    provenance: Provenance


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
    """Return cloud regions by name: of regions.yaml, then others with price and carbon."""
    document = read("regions")
    offers: dict[tuple[str, str], list[Price]] = {}
    for price in prices():
        offers.setdefault((price.provider, price.region), []).append(price)
    by_name = {
        entry["name"]: _region_from_entry(entry, document["sources"])
        for entry in document["regions"]
    }
    for grid in carbon.grids():
        if (grid.provider, grid.name) in offers and grid.name not in by_name:
            by_name[grid.name] = _region_of_grid(grid, document)
    return MappingProxyType(
        {
            name: _with_offers(region, offers.get((region.provider, name), []))
            for name, region in by_name.items()
        }
    )


def _region_from_entry(entry: dict[str, Any], texts: dict[str, str]) -> CatalogueRegion:
    """Return a region from its ``entry`` in regions.yaml; ``texts`` has sources by their names."""
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
    """Return a region that has only a carbon factor, with the PUE of its provider."""
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
    return None if grid.cycle is None else carbon.carbon_by_hour(grid.cycle, mean)


def _with_offers(region: CatalogueRegion, offers: list[Price]) -> CatalogueRegion:
    """Return the region with the prices of ``offers``; its own on-demand prices stay."""
    usd, spot, sources = dict(region.usd_per_gpu_hour), {}, dict(region.sources)
    for price in offers:
        if price.usd_per_gpu_hour is not None and price.gpu not in usd:
            usd[price.gpu] = price.usd_per_gpu_hour
            sources[price.gpu] = price.provenance
        if price.spot_usd_per_gpu_hour is not None:
            spot[price.gpu] = price.spot_usd_per_gpu_hour
            sources[f"spot {price.gpu}"] = price.provenance
    return replace(region, usd_per_gpu_hour=usd, spot_usd_per_gpu_hour=spot, sources=sources)
