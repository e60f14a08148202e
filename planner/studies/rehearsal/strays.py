"""Days somewhat unlike the one that is rehearsed on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.policies.base import Group, Policy

# What goes by what it sees has to do with so many times the requests too (assumed): a day like the
# last does not tell where its signal stops saying anything. So has what repeats the day before: it
# never sees that a day is another.
STRAYS = (0.8, 1.25)
FULLEST = 4.0  # times the requests: a day that much busier than its day before nothing repeats
SEASONAL = "seasonal-naive"
FEW = 12  # decisions rehearsed, below which they say little of how far a forecast is off (assumed)


def by_what_it_sees(policy: Policy) -> bool:
    """Whether it neither holds a fleet nor follows a plan or a timetable."""
    return policy.traits.group in (Group.REACTIVE, Group.COORDINATED)


def lives_by_sight(policy: Policy) -> bool:
    """Whether it follows a plan that may be set lower than what is forecast, and passes it by what
    it sees. What never has less than such a plan does at least as the plan alone."""
    knob = policy.knob
    return policy.traits.beyond and knob is not None and knob.values[0] < 1.0


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


def unlike(shares: Sequence[float]) -> tuple[float, ...]:
    """Of what repeats the day before, which may have been the quietest of all: fewer requests than
    on it, and as many as on the busiest of the other windows, which had ``shares`` of it. That it
    met the tiers on that one says nothing: the day before that one was as busy."""
    return STRAYS[0], float(np.clip(max(shares, default=1.0), STRAYS[1], FULLEST))
