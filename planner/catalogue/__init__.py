"""Built-in facts: GPU types, models, measured profiles, cloud regions, each with its source.

The facts are the YAML files beside this one; ``profiles.yaml`` is written by
``bench/fit_profiles.py``. Every figure is ``measured``, ``published``, ``modelled`` or ``assumed``.
"""

from planner.catalogue.facts import CatalogueRegion, Fit, ProfileFit, ProfileKey
from planner.catalogue.load import fits, gpus, models, profiles, regions

__all__ = [
    "CatalogueRegion",
    "Fit",
    "ProfileFit",
    "ProfileKey",
    "fits",
    "gpus",
    "models",
    "profiles",
    "regions",
]
