"""What somebody asks for who wants a profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from planner import catalogue
from planner.errors import CatalogueError
from simulation.performance.specs import WIDTHS, Arrangement

COMPUTED = ("operator", "roofline")  # that follow from a model's shape, without benchmark rows
KINDS = ("linear", "table", *COMPUTED)


@dataclass(frozen=True, slots=True)
class ProfileSpec:
    """What to fit: which rows of a file, as what, and under which name. Without rows an operator
    profile is the sum of its kernels, a roofline one what published peaks give.

    ``rows_model`` and ``rows_gpu`` choose rows by what the file calls them ("" where it does not
    say); ``model`` and ``gpu`` are what the profile is of. Limits that are None follow from the
    rows, vLLM's defaults and the memory that the weights leave.
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
    kernels: tuple[int, ...] = ()  # uploaded files of measured kernels, of an operator profile
    max_batch: int | None = None
    max_batch_tokens: int | None = None
    kv_capacity_tokens: int | None = None

    @property
    def arrangement(self) -> Arrangement:
        return Arrangement(
            **{name: getattr(self, name) for name in WIDTHS},
            weights=self.precision,
            kv_cache=self.kv_precision,
        )

    def by_catalogue(self) -> ProfileSpec:
        """With the catalogue's names for model and GPU where a benchmark's own were given."""
        return replace(
            self,
            model=_called(catalogue.model_name, self.model),
            gpu=_called(catalogue.gpu_name, self.gpu),
        )


def _called(find: Callable[[str], str], name: str) -> str:
    try:
        return find(name)
    except CatalogueError:
        return name
