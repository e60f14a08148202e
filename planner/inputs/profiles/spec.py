"""Define the request for a new profile, and compute profiles that need no benchmark rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.errors import CatalogueError
from planner.inputs.catalogue.estimate_calibration import efficiencies
from planner.inputs.catalogue.hardware import gpu_known_as, model_known_as
from planner.inputs.catalogue.serving import serving_limits
from simulation.performance import profile as core
from simulation.performance.kernel_tables import Kernels
from simulation.performance.roofline import operator_profile, roofline_profile
from simulation.performance.specs import WIDTHS, Arrangement, GpuSpec, ModelSpec

COMPUTED = ("operator", "roofline")  # computed from a model's shape, without benchmark rows
KINDS = ("linear", "table", *COMPUTED)


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """The profile to make: its name, kind and deployment, and the benchmark rows to fit.

    An operator profile is a sum of measured kernels. A roofline profile follows from published
    peaks. Neither needs benchmark rows. Other kinds are fitted to the rows of ``rows_model`` and
    ``rows_gpu``, which are the names in the uploaded file ("": the file has no names). ``model``
    and ``gpu`` are the names in the profile. Limits of None follow from the rows, vLLM's defaults,
    and the memory left by the weights.
    """

    name: str
    kind: str
    model: str
    gpu: str
    tp: int
    rows_model: str = ""
    rows_gpu: str = ""
    precision: str = "bf16"
    kv_precision: str = "bf16"
    pp: int = 1
    attention_dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1
    kernels: tuple[int, ...] = ()  # uploaded kernel files, for an operator profile
    max_batch: int | None = None
    max_batch_tokens: int | None = None
    kv_capacity_tokens: int | None = None

    @property
    def arrangement(self) -> Arrangement:
        """Return the parallel layout and precisions as an ``Arrangement``."""
        return Arrangement(
            **{name: getattr(self, name) for name in WIDTHS},
            weights=self.precision,
            kv_cache=self.kv_precision,
        )

    def by_catalogue(self) -> ProfileSpec:
        """Return a copy that uses the catalogue's names for model and GPU, where it has them."""
        return replace(
            self,
            model=model_known_as(self.model),
            gpu=gpu_known_as(self.gpu),
        )


def computed_profile(
    spec: ProfileSpec, model: ModelSpec, gpu: GpuSpec, kernels: Kernels | None
) -> core.Profile:
    """Return the profile that ``spec`` asks for; raise CatalogueError if an input is missing."""
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
