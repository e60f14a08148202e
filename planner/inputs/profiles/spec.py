"""Define the request for a new profile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from planner.inputs.catalogue.hardware import gpu_known_as, model_known_as
from simulation.performance.specs import WIDTHS, Arrangement

COMPUTED = ("operator", "roofline")  # computed from a model's shape, without benchmark rows
KINDS = ("linear", "table", *COMPUTED)


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """The profile to make: its name, kind, deployment and, for a fit, the rows of a file.

    An operator profile is a sum of measured kernels. A roofline profile follows from published
    peaks. Neither needs rows. ``rows_model`` and ``rows_gpu`` select rows by the names in the file
    ("": the file has no names). ``model`` and ``gpu`` are those of the profile. Limits of None
    follow from the rows, vLLM's defaults, and the memory left by the weights.
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
