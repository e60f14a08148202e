"""Read facts of a pool from the scenario of its run: node size, price and start time."""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from planner.domain.replicas import replica_of
from planner.errors import EXPECTED
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import parse
from planner.models import Run
from planner.selectors.run_hardware import stored_hardware


class PoolAttributes(NamedTuple):
    """The attributes that together identify a pool of a plan."""

    model: str
    region: str
    gpu: str
    gpus: int  # GPUs per replica
    role: str  # mixed, prefill or decode
    market: str
    arrangement: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a pool that the result of its run lacks; None if the scenario lacks them too."""

    gpus_per_node: int | None = None
    usd_per_hour: float | None = None  # of one replica
    startup_s: float | None = None
    power_cap_w: int | None = None  # of each GPU; None: no cap
    clock_mhz: int | None = None  # of each GPU, at which it draws that cap; None: not known


def facts_of(run: Run) -> dict[PoolAttributes, Facts]:
    """Return the facts of each pool of a run; {} if this release cannot read its scenario."""
    return dict(_facts(run.document, run.name or "scenario", json.dumps(run.resolved)))


@lru_cache(maxsize=32)  # a page asks several times
def _facts(document: str, name: str, resolved: str) -> dict[PoolAttributes, Facts]:
    """Return the facts of each pool of a scenario; ``resolved`` is its stored hardware as JSON."""
    try:
        scenario = parse(document, name)
        hardware = build_hardware(scenario, stored_hardware(json.loads(resolved)), spot=True)
    except EXPECTED:
        return {}
    facts: dict[PoolAttributes, Facts] = {}
    for model_index, region_index, gpu_index in hardware.model_region_gpu:
        replica = replica_of(hardware, model_index, gpu_index)
        region = hardware.regions[region_index].name
        pool = PoolAttributes(
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
