"""The scenario's faults as those of a fleet, and where they are about nothing."""

from __future__ import annotations

from collections.abc import Sequence

from planner.scenario.schema import Scenario, faults
from planner.sections import ROLES
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


def faults_of(given: Sequence[faults.Fault], pools: Sequence[Pool]) -> tuple[Fault, ...]:
    """Faults of a fleet with ``pools``, whatever a policy has made of those of the scenario; spot
    instances are lost at the rate at which they are taken back."""
    found: list[Fault] = []
    for one in given:
        if isinstance(one, faults.Outage):
            found.append(RegionOutage(one.region, one.from_s, one.to_s))
            continue
        if isinstance(one, faults.Controller):
            found.append(ControllerOutage(one.from_s, one.to_s, one.state == "kept"))
            continue
        where = tuple(p for p, pool in enumerate(pools) if _about(one, pool))
        if isinstance(one, faults.Crash):
            found += [Crash(p, one.at_s, one.instance) for p in where]
        elif isinstance(one, faults.Slow):
            found += [
                SlowInstance(p, one.from_s, one.to_s, one.factor, one.instance) for p in where
            ]
        elif isinstance(one, faults.Crashes):
            found.append(RandomCrashes(one.per_instance_hour, where))
        else:
            found.append(FailedStarts(one.probability, tuple(one.nth), where))
    for rate in sorted({pool.reclaims_per_hour for pool in pools} - {0.0}):
        taken = tuple(p for p, pool in enumerate(pools) if pool.reclaims_per_hour == rate)
        found.append(RandomCrashes(rate, taken))
    return tuple(found)


def _about(
    fault: faults.Crash | faults.Crashes | faults.Slow | faults.FailedStarts, pool: Pool
) -> bool:
    return (
        fault.model in (None, pool.model)
        and fault.region in (None, pool.region)
        and fault.gpu in (None, pool.gpu.name)
        and (fault.role is None or ROLES[fault.role] == pool.role)
    )


def fault_problems(scenario: Scenario) -> list[tuple[Path, str]]:
    """Names that faults point nowhere with, each with where it stands."""
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
                words = f"the window is over by then (horizon.duration_s: {window_s:g}); move it"
                problems.append((("faults", i, field), words))
        for field, names in have.items():
            given = getattr(fault, field, None)
            if given is not None and given not in names:
                words = f"{field} {given!r} is not in this scenario, which has "
                problems.append((("faults", i, field), words + ", ".join(sorted(names))))
    return problems
