"""Look up GPU prices by provider and region, on demand and spot."""

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
    document, gpu_type = read("prices"), gpu_name(gpu) if gpu is not None else None
    provenance = Provenance("published", document["source"])
    return [
        Price(offer["provider"], name, offer["gpu"], on_demand, spot, provenance)
        for offer in document["offers"]
        if provider in (None, offer["provider"]) and gpu_type in (None, offer["gpu"])
        for name, (on_demand, spot) in offer["usd_per_gpu_hour"].items()
        if region in (None, name)
    ]
