"""Prices by subgradient ascent: close to the best bound in a second or two, from nothing."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from planner.optimizer.decomposition.cells import Cells, Priced, Prices

FIRST_LEAP, LAST_LEAP = 0.02, 1e-5  # of the bound: how far above the best one a step aims
PATIENCE = 12  # steps without a better bound before the leap shrinks
SHRINK = 0.6
WORTHWHILE = 1e-5  # of the bound: less than this is no improvement
MEMORY = 0.7  # of the last direction (Camerini, Fratta and Maffioli 1975)


def ascend(cells: Cells, *, until: float, check: Callable[[], None]) -> tuple[Prices, Priced]:
    """Raise the bound until ``perf_counter()`` is ``until`` or leaps no longer help.

    Polyak steps towards a level a little above the best bound; the level comes down when steps
    fail. Returns the best prices and the cells at them. ``check`` may raise to end it.
    """
    prices = best_prices = cells.free
    best = cells.priced(prices)
    leap, stalled, direction, now = FIRST_LEAP, 0, cells.free, best
    ceiling = cells.ceiling_usd
    while leap > LAST_LEAP and best.bound < ceiling and perf_counter() < until:
        check()
        direction = _deflected(prices, now.slope, direction)
        length = _squared(direction)
        if length <= 0.0:
            break
        level = best.bound + leap * abs(best.bound)
        prices = prices.towards(direction, (level - now.bound) / length)
        now = cells.priced(prices)
        stalled = 0 if now.bound > best.bound + WORTHWHILE * abs(best.bound) else stalled + 1
        if now.bound > best.bound:
            best, best_prices = now, prices
        if stalled >= PATIENCE:
            prices, now, direction = best_prices, best, cells.free
            leap, stalled = leap * SHRINK, 0
    return best_prices, best


def _deflected(prices: Prices, slope: Prices, last: Prices) -> Prices:
    """``slope + MEMORY * last``, without what would push a price below 0."""
    parts = []
    for price, rise, before in zip(prices.parts(), slope.parts(), last.parts(), strict=True):
        rise = rise * ((price > 0) | (rise > 0))
        mixed = rise + MEMORY * before
        parts.append(mixed * ((price > 0) | (mixed > 0)))
    return Prices(*parts)


def _squared(direction: Prices) -> float:
    return sum(float((part**2).sum()) for part in direction.parts())
