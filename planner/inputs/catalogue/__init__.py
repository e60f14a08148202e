"""Built-in facts: GPU types, models, measured profiles, cloud regions, prices, carbon.

The facts are the YAML files of this package. ``tools/catalogue/fit_profiles.py`` writes
``profiles.yaml``. ``tools/catalogue/fit_price_carbon.py`` writes ``prices.yaml`` and
``carbon.yaml``. Every figure is ``measured``, ``published``, ``modelled`` or ``assumed``.
"""

from planner.inputs.catalogue.carbon import Grid, cycle_source, grid, grids
from planner.inputs.catalogue.hardware import (
    gpu,
    gpu_name,
    gpu_sources,
    gpus,
    model,
    model_name,
    model_of_shape,
    models,
    published_precision,
    repository,
    shape,
)
from planner.inputs.catalogue.measured_profiles import (
    engine_of,
    engine_title,
    intervals,
    limits_source,
    profiles,
)
from planner.inputs.catalogue.regions import CatalogueRegion, Price, prices, regions
