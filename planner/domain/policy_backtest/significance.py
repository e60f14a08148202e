"""Decide whether the saving of a policy over a static fleet in backtests is more than chance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from planner.domain.policy_backtest.tuning import TIE
from planner.domain.replay.backtest_windows import reserve_of
from planner.policies.registry import traits_of

CENT = 0.005  # dollars, of rounding


class Paid(Protocol):
    """Costs of a policy on the backtest windows."""

    @property
    def costs_usd(self) -> tuple[float, ...]:
        """Cost of each window, in dollars."""

    @property
    def instance_usd(self) -> float:
        """Cost of one replica that runs throughout all windows, in dollars at the mean price."""


def simple(paid: Mapping[str, Paid]) -> str | None:
    """Return the key of the cheapest deployable static fleet, or None if there is none."""
    flat = [key for key in paid if (its := traits_of(key)).flat and not its.knows_what_came]
    return min(flat, key=lambda key: (sum(paid[key].costs_usd), key), default=None)


def worth_taking(paid: Mapping[str, Paid], *, days: bool = False) -> set[str]:
    """Return the keys of the policies that are no worse a bet than the cheapest static fleet.

    These are that fleet and every policy whose saving ``tells``. Without a static fleet, all
    keys are returned.

    ``days``: the windows are earlier days at the same time of day. Then a policy that cost the
    same as the static fleet on each window also counts: while days stay alike, the two are the
    same fleet. A stretch right before the window does not show this.
    """
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
    """Return whether the saving of ``cost`` over the static fleet is more than chance.

    Two conditions hold: no window is dearer by more than the tolerance, and the total saving is
    at least ``least``.
    """
    if any(its > flats + _alike(flats) for its, flats in _pairs(cost, flat)):
        return False
    return saved(cost, flat) >= least(flat)


def least(flat: Paid) -> float:
    """Return the smallest total saving, in dollars, for which to leave the static fleet.

    There are n backtest windows. The next window differs from all of them with probability
    r = 1/(n+1), if their order is random. A policy that follows the load is then wrong by at
    least one replica, because replicas are whole. A surplus replica that runs all the time costs
    ``instance_usd`` and the earlier saving is lost. The expected gain is
    (1-r) saving - r (instance - saving), which is positive where saving > r instance.
    """
    return reserve_of(len(flat.costs_usd)) * flat.instance_usd


def saved(cost: Paid, flat: Paid) -> float:
    """Return the total saving of ``cost`` over the static fleet, in dollars."""
    return sum(flats - its for its, flats in _pairs(cost, flat))


def same(cost: Paid, flat: Paid) -> bool:
    """Return whether both cost the same on every window, within the tolerance."""
    return all(abs(its - flats) <= _alike(flats) for its, flats in _pairs(cost, flat))


def _alike(usd: float) -> float:
    """Return the difference from ``usd`` that still counts as equal, in dollars."""
    return max(CENT, TIE * usd)


def _pairs(cost: Paid, flat: Paid) -> list[tuple[float, float]]:
    return list(zip(cost.costs_usd, flat.costs_usd, strict=True))
