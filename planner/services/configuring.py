"""Search of deployments: what CLI, REST and the page call."""

from __future__ import annotations

from typing import Any

from planner.configure.asked import Asked
from planner.configure.configure import configure
from planner.selectors.hardware import own_hardware
from planner.studies.plain import as_json
from planner.studies.progress import Progress, silent


def configured(asked: Asked, progress: Progress = silent) -> dict[str, Any]:
    """The deployments of a model by what they cost, by the keys of the contract (interfaces.md).

    Raises PlannerError or SimulationError saying what is wrong.
    """
    found: dict[str, Any] = as_json(configure(asked, own_hardware(), progress))
    for row, profiles in zip(found["candidates"], found.pop("profiles"), strict=True):
        row["profiles"] = profiles
    return found
