"""What one instance of each model on each GPU type can take within the SLOs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.errors import ScenarioError
from planner.pipeline.progress import Progress
from planner.pipeline.traffic import Traffic
from planner.scenario.build import Hardware
from simulation.capacity import Capacity, capacity
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.performance.profile import Profile

Lengths = tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]  # ISL and OSL, drawn jointly


@dataclass(frozen=True, slots=True, eq=False)
class Sizes:
    """``theta_tps[l, g]``: input tokens/s of one instance at the strictest interactive tier, 0
    where the model does not run; ``capacity`` has the figures behind it by (l, g), with the tier
    that set it."""

    theta_tps: npt.NDArray[np.float64]
    capacity: dict[tuple[int, int], tuple[str, Capacity]]
    notes: tuple[str, ...]


def size(hardware: Hardware, traffic: Traffic, seed: int, progress: Progress) -> Sizes:
    """Capacity by simulation of one instance under Poisson arrivals of the model's own lengths.

    A GPU type that cannot meet a tier at any rate is left out with a note; raises ScenarioError
    when a model is left with none.
    """
    return size_lengths(hardware, traffic.lengths, seed, progress)


def strictest(
    profile: Profile, lengths: Lengths, tiers: Iterable[Tier], seed: int
) -> tuple[str, Capacity]:
    """The interactive tier at which one instance carries least, and what it carries then; raises
    SimulationError where one cannot be met at any rate."""
    sizes = [
        (tier.name, capacity(profile, lengths, tier, seed=seed))
        for tier in tiers
        if not tier.deferrable
    ]
    return min(sizes, key=lambda pair: pair[1].input_tps)


def size_lengths(
    hardware: Hardware, lengths: Sequence[Lengths], seed: int, progress: Progress
) -> Sizes:
    """``size`` with the lengths of each model's requests, as samples."""
    theta = np.zeros((len(hardware.models), len(hardware.gpus)))
    found: dict[tuple[int, int], tuple[str, Capacity]] = {}
    notes: list[str] = []
    for done, ((m, g), profile) in enumerate(hardware.profiles.items()):
        name = hardware.models[m].name
        progress(done / len(hardware.profiles), f"Sizing {name} on {hardware.gpus[g].name}")
        try:
            found[m, g] = strictest(profile, lengths[m], hardware.tiers, seed)
        except SimulationError as problem:
            notes.append(f"{name} on {hardware.gpus[g].name} is left out: {problem}")
            continue
        theta[m, g] = found[m, g][1].input_tps
    for m, model in enumerate(hardware.models):
        if not theta[m].any():
            mine = [note for note in notes if note.startswith(f"{model.name} on")]
            raise ScenarioError(
                f"tiers: no GPU type of this scenario can serve {model.name} within its limits. "
                + " ".join(mine)
            )
    return Sizes(theta_tps=theta, capacity=found, notes=tuple(notes))
