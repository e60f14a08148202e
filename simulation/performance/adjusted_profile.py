"""Copies of a profile of any kind with a few changes."""

from dataclasses import dataclass, field
from typing import Any

from simulation.performance import curves
from simulation.performance.curves import Curve
from simulation.performance.graph import OperatorGraph
from simulation.performance.power import PowerCap
from simulation.performance.profile import Check, Profile
from simulation.performance.specs import Phase, Provenance


@dataclass(frozen=True, slots=True)
class AdjustedProfile:
    """A profile whose fields are stored values: a table, a changed copy, or one from a file."""

    model: str
    gpu: str
    tp: int
    max_batch: int
    max_batch_tokens: int
    kv_capacity_tokens: int
    provenance: Provenance
    kind: str
    curve: Curve = field(repr=False)
    checks: tuple[Check, ...] = ()
    spread: float = 0.0
    start_s: float = 0.0
    phases: tuple[Phase, Phase] | None = None  # prefill and decode, if their origins differ
    graph: OperatorGraph | None = None  # of the operators, for power by load
    cap: PowerCap | None = None  # power cap of the GPUs; None: their own limit


def adjust_profile(profile: Profile, **changes: Any) -> AdjustedProfile:
    """Return a copy of ``profile`` with the named fields replaced."""
    names = [name for name in AdjustedProfile.__dataclass_fields__ if hasattr(profile, name)]
    return AdjustedProfile(**{name: getattr(profile, name) for name in names} | changes)


def scale_profile_times(profile: Profile, factor: float) -> AdjustedProfile:
    """Return ``profile`` with all seconds times ``factor``, such as 1 plus or minus its error."""
    curve, start_s = curves.scale_curve(profile.curve, factor), factor * profile.start_s
    return adjust_profile(profile, curve=curve, start_s=start_s)
