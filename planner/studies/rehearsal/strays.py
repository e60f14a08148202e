"""Days somewhat unlike the one that is rehearsed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.policies.base import Group, Policy
from planner.studies.traffic.traffic import merge
from simulation.trace import Trace

# What goes by what it sees has to do with so many times the requests too (assumed): a day like the
# last does not tell where its signal stops saying anything. So has what repeats the day before: it
# never sees that a day is another.
STRAYS = (0.8, 1.25)
SEASONAL = "seasonal-naive"
FEW = 12  # decisions rehearsed, below which they say little of how far a forecast is off (assumed)


def by_what_it_sees(policy: Policy) -> bool:
    """Whether it neither holds a fleet nor follows a plan or a timetable."""
    return policy.traits.group in (Group.REACTIVE, Group.COORDINATED)


def repeats(policy: Policy) -> bool:
    """Whether it does what the same time of another day asked for, whatever comes."""
    traits = policy.traits
    if traits.plan is not None:
        return traits.plan.method == SEASONAL
    return traits.group == Group.FIXED and not traits.flat


def unseen(shares: Sequence[float]) -> tuple[float, ...]:
    """Of STRAYS those further away than any of ``shares``, which other days had."""
    least, most = min(shares, default=1.0), max(shares, default=1.0)
    return tuple(share for share in STRAYS if share < min(least, 1.0) or share > max(most, 1.0))


def times(trace: Trace, share: float, within_s: float, rng: np.random.Generator) -> Trace:
    """``share`` times the requests of ``trace``, below 2: a random part of them, or all and a part
    again, each of these at most half of ``within_s`` from its time."""
    drawn = rng.random(len(trace)) < share % 1.0
    if share < 1.0:
        return trace.rows(drawn)
    again = trace.rows(drawn)
    if not len(again):
        return trace
    moved = again.arrival_s + rng.uniform(-within_s / 2, within_s / 2, len(again))
    arrival = np.sort(np.clip(moved, 0.0, float(trace.arrival_s[-1])))
    return merge([trace, replace(again, arrival_s=arrival)], trace.provenance)
