"""What a run's scenario knows of a pool beyond its results: node size, price, how it is served."""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import EXPECTED
from planner.models import Run
from planner.scenario.build import build_hardware
from planner.scenario.document import parse
from planner.selectors.known import known_of
from planner.studies.replicas import replica_of

Key = tuple[str, str, str, int, str, str, str]  # model, region, gpu, tp, role, market, arrangement


@dataclass(frozen=True, slots=True)
class Facts:
    """None where the scenario does not say."""

    gpus_per_node: int | None = None
    usd_per_hour: float | None = None  # of one instance
    startup_s: float | None = None


def facts_of(run: Run) -> dict[Key, Facts]:
    """By pool; none where the scenario is of another release and is not understood any more."""
    try:
        scenario = parse(run.document, run.name or "scenario")
        hardware = build_hardware(scenario, known_of(run.resolved), spot=True)
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
