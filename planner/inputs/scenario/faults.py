"""Turn the faults of a scenario into those of a fleet, and find faults that match nothing."""

from collections.abc import Sequence

from planner.inputs.scenario.schema import Scenario, faults
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

Path = tuple[str | int, ...]


def faults_of(declared: Sequence[faults.Fault], pools: Sequence[Pool]) -> tuple[Fault, ...]:
    """Return the scenario's faults for a fleet with ``pools``, which a policy may have changed.

    Spot instances are lost at random, at the rate at which the provider reclaims them.
    """
    faults_made: list[Fault] = []
    for fault in declared:
        if isinstance(fault, faults.Outage):
            faults_made.append(RegionOutage(fault.region, fault.from_s, fault.to_s))
            continue
        if isinstance(fault, faults.Controller):
            faults_made.append(ControllerOutage(fault.from_s, fault.to_s, fault.state == "kept"))
            continue
        pool_indices = tuple(
            pool_index for pool_index, pool in enumerate(pools) if _applies_to(fault, pool)
        )
        if isinstance(fault, faults.Crash):
            faults_made += [
                Crash(pool_index, fault.at_s, fault.instance) for pool_index in pool_indices
            ]
        elif isinstance(fault, faults.Slow):
            faults_made += [
                SlowInstance(pool_index, fault.from_s, fault.to_s, fault.factor, fault.instance)
                for pool_index in pool_indices
            ]
        elif isinstance(fault, faults.Crashes):
            faults_made.append(RandomCrashes(fault.per_instance_hour, pool_indices))
        else:
            faults_made.append(FailedStarts(fault.probability, tuple(fault.nth), pool_indices))
    for rate in sorted({pool.reclaims_per_hour for pool in pools} - {0.0}):
        reclaimed = tuple(
            pool_index for pool_index, pool in enumerate(pools) if pool.reclaims_per_hour == rate
        )
        faults_made.append(RandomCrashes(rate, reclaimed))
    return tuple(faults_made)


def _applies_to(
    fault: faults.Crash | faults.Crashes | faults.Slow | faults.FailedStarts, pool: Pool
) -> bool:
    """Return whether a fault applies to a pool; a field without a value matches every pool."""
    return (
        fault.model in (None, pool.model)
        and fault.region in (None, pool.region)
        and fault.gpu in (None, pool.gpu.name)
        and (fault.role is None or ROLES[fault.role] == pool.role)
    )


def fault_problems(scenario: Scenario) -> list[tuple[Path, str]]:
    """Return unknown names and times after the end in faults, each with its path in the file."""
    have: dict[str, set[str]] = {
        "model": {model.name for model in scenario.models},
        "region": {region.name for region in scenario.regions},
        "gpu": {profile.gpu for profile in scenario.profiles},
        "role": {profile.role for profile in scenario.profiles},
    }
    problems: list[tuple[Path, str]] = []
    window_s = scenario.horizon.duration_s
    for i, fault in enumerate(scenario.faults):
        for field in ("at_s", "from_s"):
            if window_s is not None and getattr(fault, field, 0.0) >= window_s:
                words = f"the window ends before (horizon.duration_s: {window_s:g}). Move it"
                problems.append((("faults", i, field), words))
        for field, names in have.items():
            value = getattr(fault, field, None)
            if value is not None and value not in names:
                words = f"{field} {value!r} is not in this scenario, which has "
                problems.append((("faults", i, field), words + ", ".join(sorted(names))))
    return problems
