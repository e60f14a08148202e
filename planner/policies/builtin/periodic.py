"""Counts by the time of day (methods.md D3)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from planner.policies.base import Group, Knob, LoadFactor, Policy, Traits
from planner.policies.builtin.planned import LOAD, followed
from planner.policies.making import Making, Ready
from planner.sections import ROLES, Count, Name, Role, Section
from simulation.arrays import IntArray
from simulation.fleet import Pool
from simulation.policies.periodic import DAY_S
from simulation.policies.periodic import Periodic as Rule


class TimetableStep(Section):
    """From a time of day (UTC) on, so many replicas per pool that the row is about."""

    at: Annotated[str, Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]  # "08:00", in quotes
    replicas: Count
    model: Name | None = None  # left out: every model, region, GPU type and role
    region: Name | None = None
    gpu: Name | None = None
    role: Role | None = None

    @property
    def at_s(self) -> float:
        """Seconds of the day."""
        return int(self.at[:2]) * 3600.0 + int(self.at[3:]) * 60.0

    def about(self, pool: Pool) -> bool:
        return (
            self.model in (None, pool.model)
            and self.region in (None, pool.region)
            and self.gpu in (None, pool.gpu.name)
            and (self.role is None or ROLES[self.role] == pool.role)
        )


class Periodic(Policy):
    """Counts by the time of day; without a timetable, planned for the day before."""

    kinds: ClassVar = {
        "periodic": Traits(
            "Periodic",
            "Counts by the time of day: a timetable, or the day before.",
            Group.FIXED,
            complexity=10,
        )
    }

    name: Literal["periodic"]
    timetable: Annotated[list[TimetableStep], Field(max_length=1000)] = []
    load_factor: LoadFactor = 1.0  # of the day before

    @property
    def knob(self) -> Knob | None:
        return None if self.timetable else LOAD

    def ready(self, making: Making) -> Ready:
        if not self.timetable:
            return followed(making, making.day_before(self.load_factor), self.key)
        rows = sorted(self.timetable, key=lambda row: row.at)
        now, pools = making.today, making.fleet(making.today).pools
        counts: dict[float, IntArray] = {}
        for row in [*rows, *rows]:  # again, since what the evening left holds in the morning
            about = [row.about(pool) for pool in pools]
            counts[row.at_s] = now = np.where(about, row.replicas, now)
        policy = Rule(
            list(counts),
            np.array(list(counts.values())),
            offset_s=making.start_s % DAY_S,
            name=self.key,
        )
        return making.on(policy, policy.reset(making.fleet(now)))
