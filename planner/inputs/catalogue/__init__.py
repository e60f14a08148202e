"""Built-in facts: GPU types, models, measured profiles, cloud regions, prices, carbon.

The facts are the YAML files of this package. ``tools/catalogue/fit_profiles.py`` writes
``profiles.yaml``. ``tools/catalogue/fit_price_carbon.py`` writes ``prices.yaml`` and
``carbon.yaml``. Every figure is ``measured``, ``published``, ``modelled`` or ``assumed``.
"""

from planner.inputs.catalogue.carbon import Cycle, Grid, cycles, grid, grids
from planner.inputs.catalogue.hardware import (
    TYPICAL_CONTEXT,
    gpu,
    gpu_name,
    gpu_sources,
    gpus,
    model,
    model_name,
    model_of_shape,
    models,
    published_parameters,
    published_precision,
    repository,
    shape,
)
from planner.inputs.catalogue.measured_profiles import (
    ProfileFit,
    ProfileKey,
    engine_of,
    engine_title,
    fits,
    profiles,
)
from planner.inputs.catalogue.regions import CatalogueRegion, Price, prices, regions

__all__ = [
    "TYPICAL_CONTEXT",
    "CatalogueRegion",
    "Cycle",
    "Grid",
    "Price",
    "ProfileFit",
    "ProfileKey",
    "cycles",
    "engine_of",
    "engine_title",
    "fits",
    "gpu",
    "gpu_name",
    "gpu_sources",
    "gpus",
    "grid",
    "grids",
    "model",
    "model_name",
    "model_of_shape",
    "models",
    "prices",
    "profiles",
    "published_parameters",
    "published_precision",
    "regions",
    "repository",
    "shape",
]
