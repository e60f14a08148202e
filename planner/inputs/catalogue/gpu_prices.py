"""Look up GPU prices by provider and region, on demand and spot."""

from functools import cache

from planner.inputs.catalogue.fact_types import Price
from planner.inputs.catalogue.files import read
from planner.inputs.catalogue.hardware import gpu_name
from simulation.performance.specs import Provenance


def prices(
    provider: str | None = None, region: str | None = None, gpu: str | None = None
) -> list[Price]:
    """Return the offers of a provider, in a region, of a GPU type; all without arguments.

    ``gpu`` may be any of the type's names. Raises CatalogueError for an unknown GPU type.
    """
    gpu_type = gpu_name(gpu) if gpu is not None else None
    return [
        price
        for price in _prices()
        if provider in (None, price.provider)
        and region in (None, price.region)
        and gpu_type in (None, price.gpu)
    ]


@cache
def _prices() -> tuple[Price, ...]:
    """Build the offers of ``prices.yaml``."""
    document = read("prices")
    provenance = Provenance("published", document["source"])
    return tuple(
        Price(
            provider=offer["provider"],
            region=region,
            gpu=offer["gpu"],
            usd_per_gpu_hour=on_demand,
            spot_usd_per_gpu_hour=spot,
            provenance=provenance,
        )
        for offer in document["offers"]
        for region, (on_demand, spot) in offer["usd_per_gpu_hour"].items()
    )
