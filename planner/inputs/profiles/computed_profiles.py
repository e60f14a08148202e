"""Compute profiles from a model's shape: sums of measured kernels, or rooflines."""

from planner.errors import CatalogueError
from planner.inputs.catalogue.efficiency import efficiencies
from planner.inputs.catalogue.serving import serving_limits
from planner.inputs.profiles.spec import COMPUTED, ProfileSpec
from simulation.performance import profile as core
from simulation.performance.kernel_tables import Kernels
from simulation.performance.operator import operator_profile
from simulation.performance.roofline import roofline_profile
from simulation.performance.specs import GpuSpec, ModelSpec


def computed_profile(
    spec: ProfileSpec, model: ModelSpec, gpu: GpuSpec, kernels: Kernels | None
) -> core.Profile:
    """Return an operator profile from ``kernels``, or a roofline profile.

    ``kernels`` None: there are none. Raises CatalogueError or SimulationError if an input is
    missing.
    """
    if spec.kind not in COMPUTED:
        raise CatalogueError(
            f"A {spec.kind} profile needs benchmark rows. Choose {' or '.join(COMPUTED)} without "
            "them."
        )
    if model.shape is None:
        raise CatalogueError(
            f"{model.name} has a memory size and no shape. Add it from its config.json."
        )
    if spec.kind == "operator" and kernels is None:
        raise CatalogueError(
            "An operator profile needs at least one file of measured kernels. Upload it under "
            "Calibration, or take a roofline, which needs none."
        )
    limits = serving_limits(
        model.shape,
        gpu,
        spec.arrangement,
        max_batch=spec.max_batch,
        max_batch_tokens=spec.max_batch_tokens,
        kv_capacity_tokens=spec.kv_capacity_tokens,
    )
    if spec.kind == "roofline" or kernels is None:
        return roofline_profile(model.shape, gpu, spec.arrangement, efficiencies(), limits)
    return operator_profile(model.shape, gpu, spec.arrangement, kernels, efficiencies(), limits)
