"""What it takes to leave a fleet that never moves, which costs in the window what it did before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from planner.policies.registry import traits_of
from planner.studies.rehearsal.tuning import TIE
from planner.studies.replay.earlier import reserve_of

CENT = 0.005  # dollars, of rounding


class Paid(Protocol):
    """What was paid on the windows rehearsed."""

    @property
    def costs_usd(self) -> tuple[float, ...]:
        """By window."""

    @property
    def instance_usd(self) -> float:
        """What one instance costs all the time on all of them, at the mean price of its own."""


def simple(paid: Mapping[str, Paid]) -> str | None:
    """Of policies by key, the cheapest fleet that never moves and can be run."""
    flat = [key for key in paid if (its := traits_of(key)).flat and not its.knows_what_came]
    return min(flat, key=lambda key: (sum(paid[key].costs_usd), key), default=None)


def worth_taking(paid: Mapping[str, Paid], *, days: bool = False) -> set[str]:
    """Those of ``paid``, by key, that are no worse a bet than the simple fleet: it, and what
    ``tells``; where there is no simple fleet, all. Where windows are ``days`` before, at the same
    time of day, also what cost the same on each: it then is that fleet while days are as they
    were, which a stretch right before the window does not say."""
    simplest = simple(paid)
    if simplest is None:
        return set(paid)
    flat = paid[simplest]
    return {
        key
        for key, cost in paid.items()
        if key == simplest or tells(cost, flat) or (days and same(cost, flat))
    }


def tells(cost: Paid, flat: Paid) -> bool:
    """Whether what ``cost`` saved is more than chance: on no window is it dearer than the flat
    fleet by more than what counts as the same, and on all together it saves ``least``."""
    if any(its > flats + _alike(flats) for its, flats in _pairs(cost, flat)):
        return False
    return saved(cost, flat) >= least(flat)


def least(flat: Paid) -> float:
    """The saving on the n windows rehearsed below which it is better to stay with the flat fleet.

    The window to come is unlike all of them with a chance of r = 1/(n+1), were they in any order.
    What follows load is then off by an instance at the least, since they come whole; were that one
    too many all the time, it would cost an instance instead of what it saved before. Expected is
    (1-r) saving - r (instance - saving), which is positive where saving > r instance.
    """
    return reserve_of(len(flat.costs_usd)) * flat.instance_usd


def saved(cost: Paid, flat: Paid) -> float:
    return sum(flats - its for its, flats in _pairs(cost, flat))


def same(cost: Paid, flat: Paid) -> bool:
    return all(abs(its - flats) <= _alike(flats) for its, flats in _pairs(cost, flat))


def _alike(usd: float) -> float:
    """Dollars that make no difference to so many."""
    return max(CENT, TIE * usd)


def _pairs(cost: Paid, flat: Paid) -> list[tuple[float, float]]:
    return list(zip(cost.costs_usd, flat.costs_usd, strict=True))
