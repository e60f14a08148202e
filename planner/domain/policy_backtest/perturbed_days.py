"""Choose backtest days that differ somewhat from the window replayed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from planner.policies.base import Group, Policy

# Factors on the requests that reactive policies also have to withstand (assumed). A day like the
# last does not show where a signal saturates. Policies that repeat the day before are tested too:
# they never notice that a day differs.
STRAYS = (0.8, 1.25)
FULLEST = 4.0  # largest factor: no repeated plan serves a day this much busier than the day before
SEASONAL = "seasonal-naive"
FEW = 12  # with fewer decisions a backtest says little about forecast errors (assumed)


def by_what_it_sees(policy: Policy) -> bool:
    """Return whether the policy reacts to signals only, without a fixed fleet, plan or schedule."""
    return policy.traits.group in (Group.REACTIVE, Group.COORDINATED)


def lives_by_sight(policy: Policy) -> bool:
    """Return whether the policy may plan below the forecast and exceeds the plan by its signals.

    A policy that never runs less than the full plan does at least as well as the plan alone.
    """
    knob = policy.knob
    return policy.traits.beyond and knob is not None and knob.values[0] < 1.0


def repeats(policy: Policy) -> bool:
    """Return whether the policy repeats the demand of another day, whatever arrives."""
    traits = policy.traits
    if traits.plan is not None:
        return traits.plan.method == SEASONAL
    return traits.group == Group.FIXED and not traits.flat


def unseen(shares: Sequence[float]) -> tuple[float, ...]:
    """Return the STRAYS outside the range of ``shares``, which other days had."""
    least, most = min(shares, default=1.0), max(shares, default=1.0)
    return tuple(share for share in STRAYS if share < min(least, 1.0) or share > max(most, 1.0))


def unlike(shares: Sequence[float]) -> tuple[float, ...]:
    """Return the factors for a policy that repeats the day before.

    They are fewer requests than on that day, and as many as on the busiest of the other windows.
    ``shares`` are the requests of those windows relative to that day. The day repeated may have
    been the quietest. Meeting the SLOs on the busiest window proves nothing if the day before it
    was as busy.
    """
    return STRAYS[0], float(np.clip(max(shares, default=1.0), STRAYS[1], FULLEST))
