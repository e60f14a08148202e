"""Read facts of a pool from the scenario of its run: node size, price and start time."""

import json
from dataclasses import dataclass
from functools import lru_cache

from planner.domain.replicas import replica_of
from planner.errors import EXPECTED
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.document import parse
from planner.models import Run
from planner.selectors.run_hardware import stored_hardware

Key = tuple[str, str, str, int, str, str, str]  # model, region, gpu, tp, role, market, arrangement


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a pool that its result does not contain; None if the scenario lacks them."""

    gpus_per_node: int | None = None
    usd_per_hour: float | None = None  # of one replica
    startup_s: float | None = None
    power_cap_w: int | None = None  # of each GPU; None: no cap
    clock_mhz: int | None = None  # of each GPU, at which it draws that cap; None: not known


def facts_of(run: Run) -> dict[Key, Facts]:
    """Return the facts of each pool of a run.

    The result is empty if this release cannot read the scenario of the run.
    """
    return dict(_facts(run.document, run.name or "scenario", json.dumps(run.resolved)))


@lru_cache(maxsize=32)  # a page asks several times
def _facts(document: str, name: str, resolved: str) -> dict[Key, Facts]:
    """Return the facts of each pool of a scenario ``document``, a YAML text.

    ``resolved`` is the hardware that its run stored, as JSON.
    """
    try:
        scenario = parse(document, name)
        hardware = build_hardware(scenario, stored_hardware(json.loads(resolved)), spot=True)
    except EXPECTED:
        return {}
    facts: dict[Key, Facts] = {}
    for model_index, region_index, column in hardware.pool_index:
        replica = replica_of(hardware, model_index, column)
        region = hardware.regions[region_index].name
        key = (
            replica.model,
            region,
            replica.gpu,
            replica.tp,
            replica.role,
            replica.market,
            replica.arrangement,
        )
        facts[key] = Facts(
            gpus_per_node=hardware.gpus[column].gpus_per_node,
            usd_per_hour=float(hardware.usd_per_gpu_hour[region_index, column]) * replica.tp,
            startup_s=hardware.startup_s,
            power_cap_w=_power_cap_w(hardware, model_index, column),
            clock_mhz=_clock_mhz(hardware, model_index, column),
        )
    return facts


def _power_cap_w(hardware: Hardware, model: int, gpu: int) -> int | None:
    """Return the power cap of a GPU in watts, or None without a cap or a TDP.

    ``model`` and ``gpu`` are indices of ``hardware``.
    """
    share, tdp_w = hardware.sections[model, gpu].power_cap, hardware.gpus[gpu].tdp_w
    return None if share is None or tdp_w is None else round(share * tdp_w)


def _clock_mhz(hardware: Hardware, model: int, gpu: int) -> int | None:
    """Return the clock in MHz at which a GPU draws its power cap, or None if it is not known."""
    cap = getattr(hardware.profiles[model, gpu], "cap", None)
    return None if cap is None or cap.clock_mhz is None else round(cap.clock_mhz)
