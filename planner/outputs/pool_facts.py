"""Read facts of a pool from the scenario of its run: node size, price and start time."""

from __future__ import annotations

from dataclasses import dataclass

from planner.domain.replicas import replica_of
from planner.errors import EXPECTED
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import parse
from planner.models import Run
from planner.selectors.run_hardware import stored_hardware

Key = tuple[str, str, str, int, str, str, str]  # model, region, gpu, tp, role, market, arrangement


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a pool that its results do not hold; None if the scenario does not give them."""

    gpus_per_node: int | None = None
    usd_per_hour: float | None = None  # of one replica
    startup_s: float | None = None


def facts_of(run: Run) -> dict[Key, Facts]:
    """Return the facts of each pool of a run.

    The result is empty if this release cannot read the scenario of the run.
    """
    try:
        scenario = parse(run.document, run.name or "scenario")
        hardware = build_hardware(scenario, stored_hardware(run.resolved), spot=True)
    except EXPECTED:
        return {}
    facts: dict[Key, Facts] = {}
    for m, r, g in hardware.pool_index:
        replica = replica_of(hardware, m, g)
        region = hardware.regions[r].name
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
            gpus_per_node=hardware.gpus[g].gpus_per_node,
            usd_per_hour=float(hardware.usd_per_gpu_hour[r, g]) * replica.tp,
            startup_s=hardware.startup_s,
        )
    return facts
