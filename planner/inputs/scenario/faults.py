"""Turn the faults of a scenario into faults that the simulator applies to the pools of a fleet."""

from collections.abc import Sequence
from typing import Any

from planner.inputs.scenario.schema import faults
from planner.schema_types import ROLES
from simulation.faults import (
    ControllerOutage,
    Crash,
    FailedStarts,
    Fault,
    RandomCrashes,
    RegionOutage,
    SlowInstance,
)
from simulation.fleet import Pool


def faults_of(declared: Sequence[faults.Fault], pools: Sequence[Pool]) -> tuple[Fault, ...]:
    """Return the faults to simulate on a fleet with ``pools``.

    Spot instances are lost at random too, at the rate at which the provider reclaims them.
    """
    simulated: list[Fault] = []
    for fault in declared:
        if isinstance(fault, faults.Outage):
            simulated.append(RegionOutage(fault.region, fault.from_s, fault.to_s))
        elif isinstance(fault, faults.Controller):
            simulated.append(ControllerOutage(fault.from_s, fault.to_s, fault.state == "kept"))
        else:
            matching = tuple(i for i, pool in enumerate(pools) if _matches(fault, pool))
            simulated += _faults_of_pools(fault, matching)
    for rate in sorted({pool.reclaims_per_hour for pool in pools} - {0.0}):
        reclaimed = tuple(i for i, pool in enumerate(pools) if pool.reclaims_per_hour == rate)
        simulated.append(RandomCrashes(rate, reclaimed))
    return tuple(simulated)


def _faults_of_pools(
    fault: faults.Crash | faults.Slow | faults.Crashes | faults.FailedStarts,
    pools: tuple[int, ...],
) -> list[Fault]:
    """Return the faults to simulate for a fault of instances in ``pools``."""
    if isinstance(fault, faults.Crash):
        return [Crash(i, fault.at_s, fault.instance) for i in pools]
    if isinstance(fault, faults.Slow):
        span = fault.from_s, fault.to_s
        return [SlowInstance(i, *span, fault.factor, fault.instance) for i in pools]
    if isinstance(fault, faults.Crashes):
        return [RandomCrashes(fault.per_instance_hour, pools)]
    return [FailedStarts(fault.probability, tuple(fault.nth), pools)]


def _matches(fault: Any, pool: Pool) -> bool:
    """Return whether a fault is of a pool; a field without a value matches every pool."""
    return (
        fault.model in (None, pool.model)
        and fault.region in (None, pool.region)
        and fault.gpu in (None, pool.gpu.name)
        and (fault.role is None or ROLES[fault.role] == pool.role)
    )
