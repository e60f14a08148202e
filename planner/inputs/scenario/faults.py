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
        match fault:
            case faults.Outage():
                simulated.append(RegionOutage(fault.region, fault.from_s, fault.to_s))
            case faults.Controller():
                keeps_state = fault.state == "kept"
                simulated.append(ControllerOutage(fault.from_s, fault.to_s, keeps_state))
            case faults.Crash():
                for i in _selected(fault, pools):
                    simulated.append(Crash(i, fault.at_s, fault.instance))
            case faults.Slow():
                span = fault.from_s, fault.to_s
                for i in _selected(fault, pools):
                    simulated.append(SlowInstance(i, *span, fault.factor, fault.instance))
            case faults.Crashes():
                rate = fault.per_instance_hour
                simulated.append(RandomCrashes(rate, _selected(fault, pools)))
            case faults.FailedStarts():
                numbers, selected = tuple(fault.nth), _selected(fault, pools)
                simulated.append(FailedStarts(fault.probability, numbers, selected))
    for rate in sorted({pool.reclaims_per_hour for pool in pools} - {0.0}):
        reclaimed = tuple(i for i, pool in enumerate(pools) if pool.reclaims_per_hour == rate)
        simulated.append(RandomCrashes(rate, reclaimed))
    return tuple(simulated)


def _selected(fault: Any, pools: Sequence[Pool]) -> tuple[int, ...]:
    """Return the indices of the pools of a fault; a field without a value matches every pool."""
    return tuple(
        i
        for i, pool in enumerate(pools)
        if fault.model in (None, pool.model)
        and fault.region in (None, pool.region)
        and fault.gpu in (None, pool.gpu.name)
        and (fault.role is None or ROLES[fault.role] == pool.role)
    )
