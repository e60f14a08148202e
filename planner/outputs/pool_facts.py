"""Read facts of a pool from the scenario of its run: node size, price and start time."""

import json
from dataclasses import dataclass
from functools import lru_cache

from planner.domain.replicas import replica_of
from planner.errors import EXPECTED
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import parse
from planner.models import Run
from planner.selectors.run_hardware import stored_hardware

Key = tuple[str, str, str, int, str, str, str]  # model, region, gpu, tp, role, market, arrangement


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a pool that the result of its run lacks; None if the scenario lacks them too."""

    gpus_per_node: int | None = None
    usd_per_hour: float | None = None  # of one replica
    startup_s: float | None = None
    power_cap_w: int | None = None  # of each GPU; None: no cap
    clock_mhz: int | None = None  # of each GPU, at which it draws that cap; None: not known


def facts_of(run: Run) -> dict[Key, Facts]:
    """Return the facts of each pool of a run; {} if this release cannot read its scenario."""
    return dict(_facts(run.document, run.name or "scenario", json.dumps(run.resolved)))


@lru_cache(maxsize=32)  # a page asks several times
def _facts(document: str, name: str, resolved: str) -> dict[Key, Facts]:
    """Return the facts of each pool of a scenario; ``resolved`` is its stored hardware as JSON."""
    try:
        scenario = parse(document, name)
        hardware = build_hardware(scenario, stored_hardware(json.loads(resolved)), spot=True)
    except EXPECTED:
        return {}
    facts: dict[Key, Facts] = {}
    for model_index, region_index, column in hardware.model_region_gpu:
        replica = replica_of(hardware, model_index, column)
        region = hardware.regions[region_index].name
        key = (
            replica.model, region, replica.gpu, replica.tp, replica.role, replica.market,
            replica.arrangement,
        )  # fmt: skip
        gpu, power_cap = hardware.gpus[column], hardware.sections[model_index, column].power_cap
        cap_and_clock = getattr(hardware.profiles[model_index, column], "cap", None)
        clock_mhz = cap_and_clock.clock_mhz if cap_and_clock else None
        facts[key] = Facts(
            gpus_per_node=gpu.gpus_per_node,
            usd_per_hour=float(hardware.usd_per_gpu_hour[region_index, column]) * replica.tp,
            startup_s=hardware.startup_s,
            power_cap_w=None
            if power_cap is None or not gpu.tdp_w
            else round(power_cap * gpu.tdp_w),
            clock_mhz=None if clock_mhz is None else round(clock_mhz),
        )
    return facts
