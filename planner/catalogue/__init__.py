"""Built-in facts: GPU types, models, measured profiles, cloud regions, each with its source.

The facts are the YAML files beside this one; ``profiles.yaml`` is written by
``bench/fit_profiles.py``. Every figure is ``measured``, ``published``, ``modelled`` or ``assumed``.
"""

from planner.catalogue.facts import CatalogueRegion, Fit, ProfileFit, ProfileKey
from planner.catalogue.hardware import (
    gpu,
    gpu_name,
    gpu_sources,
    gpus,
    model,
    model_ids,
    model_name,
    models,
    published_parameters,
    published_precision,
    shape,
)
from planner.catalogue.load import fits, profiles, regions

__all__ = [
    "CatalogueRegion",
    "Fit",
    "ProfileFit",
    "ProfileKey",
    "fits",
    "gpu",
    "gpu_name",
    "gpu_sources",
    "gpus",
    "model",
    "model_ids",
    "model_name",
    "models",
    "profiles",
    "published_parameters",
    "published_precision",
    "regions",
    "shape",
]
