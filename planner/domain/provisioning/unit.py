"""Define the case of a provisioning run: a phase of a model on a GPU type, with its plans."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from planner.domain.provisioning.levels import Judge, Measurements, usable_bytes
from planner.domain.provisioning.load import Limit
from planner.domain.provisioning.source_methods import Method
from simulation.performance.profile import Profile
from simulation.provisioning.level import Level
from simulation.provisioning.workload import Phase, PhaseLoad, PhaseProblem

MODEL, OPERATOR, MODULE = "model", "operator", "module"
WORDS = {OPERATOR: "by operators", MODULE: "by modules", MODEL: "by whole replicas"}


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One phase of a model in a region, on a GPU type in a precision, with its plans by level.

    Levels are "model" (whole replicas), "module" and "operator". ``levels`` is empty if no number
    of replicas meets the limit.
    """

    model: str
    region: str
    gpu: str
    phase: Phase
    service: PhaseLoad
    limit: Limit
    weights: str
    problem: PhaseProblem
    levels: dict[str, Level]
    usd_per_hour: float
    measured: Measurements
    capacity: int  # GPUs of the type in the region
    profiles: tuple[Profile, ...]  # from the scenario
    judge: Judge | None  # requests and target of replays; None: the trace has no such requests
    chosen: bool = False  # counts in the totals
    methods: tuple[Method, ...] = ()  # operator plans by each method (``methods_of``)

    @property
    def where(self) -> str:
        """Return model, region and GPU type in words."""
        return f"{self.model} in {self.region} on {self.gpu}"

    @property
    def device_bytes(self) -> float:
        """Return the memory of one GPU that plans may use, in bytes."""
        return usable_bytes(self.service.gpu)

    @property
    def smallest(self) -> Level:
        """Return the plan with the fewest devices; of several, the one with the lowest power."""
        return min(self.levels.values(), key=lambda level: (level.devices, level.power_w))


@dataclass(frozen=True, slots=True)
class Sentences:
    """Sentences of a result: on what saves no GPUs (shown as warnings), and on what saves some."""

    without_savings: tuple[str, ...] = ()
    with_savings: tuple[str, ...] = ()


def groups(cases: Iterable[Case], key: Callable[[Case], Any]) -> list[list[Case]]:
    """Return the cases in groups with equal ``key``, in order of the first of each group."""
    by_key: dict[Any, list[Case]] = {}
    for case in cases:
        by_key.setdefault(key(case), []).append(case)
    return list(by_key.values())
