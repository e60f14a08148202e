"""Hold the facts that users of an installation have added to the built-in ones.

``build_hardware`` receives them as plain data, so that this package needs no database.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planner.inputs.catalogue.price_lists import OwnPrice
from simulation.performance.estimate.measured_corrections import Times
from simulation.performance.profile import Profile
from simulation.performance.specs import GpuSpec, ModelSpec


@dataclass(frozen=True, slots=True)
class KernelSource:
    """A file of measured kernels, which is read only for operator-level provisioning."""

    path: Path
    name: str
    format: str
    source: str


@dataclass(frozen=True, slots=True)
class UserFacts:
    """The user's own facts by name; ``profiles`` has the version that the scenario names."""

    gpus: Mapping[str, GpuSpec] = field(default_factory=dict)
    models: Mapping[str, ModelSpec] = field(default_factory=dict)
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    prices: Mapping[tuple[str, str], OwnPrice] = field(default_factory=dict)  # by region and GPU
    kernels: Mapping[str, tuple[KernelSource, ...]] = field(default_factory=dict)  # by GPU type
    own: Times | None = None  # estimates from the stored measurements of deployments


NO_USER_FACTS = UserFacts()
