"""Look up GPU prices, and combine price, carbon and PUE of cloud regions."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType

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
    offers_of_region: dict[tuple[str, str], list[Price]] = {}  # by provider and name
    for price in prices():
        offers_of_region.setdefault((price.provider, price.region), []).append(price)
    # Each region with its PUE, prices by GPU type and carbon, as far as regions.yaml states them.
    grids_and_figures = []
    for entry in document["regions"]:
        grid = replace(carbon.grid(entry["name"], entry["provider"]), location=entry["location"])
        figures = {name: entry[name] for name in ("carbon_g_per_kwh", "pue")}
        grids_and_figures.append((grid, figures | entry["usd_per_gpu_hour"]))
    listed = {grid.name for grid, _ in grids_and_figures}
    for grid in carbon.grids():  # others have the PUE of their provider
        if (grid.provider, grid.name) in offers_of_region and grid.name not in listed:
            pue = document["pue_of"].get(grid.name) or document["pue_of"][grid.provider]
            grids_and_figures.append((grid, {"pue": pue}))
    region_of_name = {}
    for grid, figures in grids_and_figures:
        values = {name: float(figure["value"]) for name, figure in figures.items()}
        sources = {"carbon_g_per_kwh": grid.provenance}
        for name, figure in figures.items():
            sources[name] = Provenance(figure["kind"], document["sources"][figure["source"]])
        offers = offers_of_region.get((grid.provider, grid.name), [])
        region_of_name[grid.name] = _region(grid, values, sources, offers)
    return MappingProxyType(region_of_name)


def _region(
    grid: Grid, values: dict[str, float], sources: dict[str, Provenance], offers: Iterable[Price]
) -> CatalogueRegion:
    """Return the region of ``grid`` with stated ``values``, and with ``offers`` for other GPUs.

    ``values`` are the PUE, prices on demand by GPU type, and the carbon if it is not the grid's.
    They and ``sources`` are changed in place.
    """
    mean, pue = values.pop("carbon_g_per_kwh", grid.carbon_g_per_kwh), values.pop("pue")
    spot = {}
    for price in offers:
        if price.usd_per_gpu_hour is not None and price.gpu not in values:
            values[price.gpu] = price.usd_per_gpu_hour
            sources[price.gpu] = price.provenance
        if price.spot_usd_per_gpu_hour is not None:
            spot[price.gpu] = price.spot_usd_per_gpu_hour
            sources[f"spot {price.gpu}"] = price.provenance
    return CatalogueRegion(
        name=grid.name,
        provider=grid.provider,
        location=grid.location,
        carbon_g_per_kwh=mean,
        pue=pue,
        usd_per_gpu_hour=values,
        sources=sources,
        spot_usd_per_gpu_hour=spot,
        carbon_hourly=carbon.carbon_by_hour(grid.cycle, mean) if grid.cycle else None,
        cycle=grid.cycle,
    )
