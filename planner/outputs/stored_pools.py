"""Read the pools of a stored active plan."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from planner.models import ActivePlan
from planner.outputs.weekly_pattern import Step


@dataclass(frozen=True, slots=True)
class StoredPool:
    """A pool of an active plan, with its schedule in local time of the plan.

    Plans of older releases stored no GPUs, market and arrangement.
    """

    name: str
    region: str
    model: str
    gpu: str
    role: str
    steps: tuple[Step, ...]
    gpus: int | None = None  # GPUs per replica
    market: str | None = None
    arrangement: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Return the name and region of the pool, which identify its deployment."""
        return self.name, self.region


def pools_of(plan: ActivePlan) -> list[StoredPool]:
    """Return the pools of an active or former plan, as they were at activation."""
    pools = []
    for document in plan.pools:
        steps = tuple(map(_step, document["steps"]))
        pools.append(StoredPool(**{**document, "steps": steps}))
    return pools


def _step(row: Sequence[str | int]) -> Step:
    """Return a step from its stored row [begins, ends, replicas]."""
    begins, ends, replicas = row
    return Step(
        datetime.fromisoformat(str(begins)), datetime.fromisoformat(str(ends)), int(replicas)
    )
