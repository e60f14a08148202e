"""A pool of a plan, and its facts from the scenario of the run, such as price and start time."""

import json
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache

from planner.domain.replicas import replica_of
from planner.errors import EXPECTED
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import parse
from planner.models import Run
from planner.outputs.plan_guard import Guard
from planner.outputs.weekly_pattern import Step
from planner.selectors.run_hardware import stored_hardware


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a pool that the result of its run lacks; None if the scenario lacks them too."""

    gpus_per_node: int | None = None
    usd_per_hour: float | None = None  # of one replica
    startup_s: float | None = None
    power_cap_w: int | None = None  # of each GPU; None: no cap
    clock_mhz: int | None = None  # of each GPU, at which it draws that cap; None: not known


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal replicas in one region: one deployment. Those of a reactive policy have no steps.

    The first fields describe its replicas. The others are set once its schedule is known.
    """

    model: str
    region: str
    gpu: str
    gpus: int  # GPUs per replica
    role: str  # mixed, prefill or decode
    market: str
    arrangement: str
    name: str = ""
    default_name: str = ""
    steps: tuple[Step, ...] = ()  # in local time of the plan
    min_replicas: int = 0  # of the steps, or the policy's lower limit
    max_replicas: int = 0
    facts: Facts = Facts()
    guard: Guard | None = None  # None: the steps alone decide

    @property
    def max_with_guard(self) -> int:
        """Return the upper limit of replicas, including those that the guard adds."""
        guard_maximum = self.guard.max_replicas if self.guard else 0
        return max(self.max_replicas, guard_maximum, 1)

    def replicas_at(self, moment: datetime) -> int:
        """Return the replicas at a local time; outside the schedule, of its first or last step."""
        for step in self.steps:
            if moment < step.ends:
                return step.replicas
        last_step = self.steps[-1]
        return last_step.replicas


def facts_of(run: Run) -> dict[Pool, Facts]:
    """Return the facts of each pool of a run, {} if this release cannot read its scenario.

    The keys are pools without names and steps.
    """
    return dict(_facts(run.document, run.name or "scenario", json.dumps(run.resolved)))


@lru_cache(maxsize=32)  # a page asks several times
def _facts(document: str, name: str, resolved: str) -> dict[Pool, Facts]:
    """Return the facts of each pool of a scenario; ``resolved`` is its stored hardware as JSON."""
    try:
        scenario = parse(document, name)
        hardware = build_hardware(scenario, stored_hardware(json.loads(resolved)), spot=True)
    except EXPECTED:
        return {}
    facts: dict[Pool, Facts] = {}
    for model_index, region_index, gpu_index in hardware.model_region_gpu:
        replica = replica_of(hardware, model_index, gpu_index)
        region = hardware.regions[region_index].name
        pool = Pool(
            replica.model, region, replica.gpu, replica.tp, replica.role, replica.market,
            replica.arrangement,
        )  # fmt: skip
        gpu = hardware.gpus[gpu_index]
        cap_share = hardware.sections[model_index, gpu_index].power_cap  # of the GPU's TDP
        power_cap_w = round(cap_share * gpu.tdp_w) if cap_share is not None and gpu.tdp_w else None
        profile_cap = getattr(hardware.profiles[model_index, gpu_index], "cap", None)
        clock_mhz = profile_cap.clock_mhz if profile_cap else None
        facts[pool] = Facts(
            gpus_per_node=gpu.gpus_per_node,
            usd_per_hour=float(hardware.usd_per_gpu_hour[region_index, gpu_index]) * replica.tp,
            startup_s=hardware.startup_s,
            power_cap_w=power_cap_w,
            clock_mhz=None if clock_mhz is None else round(clock_mhz),
        )
    return facts
