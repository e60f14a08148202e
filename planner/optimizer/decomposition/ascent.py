"""Raise the lower bound on the cost of a plan by subgradient ascent on prices.

Prices charge cells (models in regions) for what they share: GPUs, joint demand and caps. ``ascend``
starts from nothing and is close to the best bound in a second or two. ``polish`` then improves the
prices of very large plans model by model and region by region.
"""

from collections.abc import Callable
from time import perf_counter

import numpy as np

from planner.optimizer.decomposition.cells import Cells, PricedCells, Prices
from simulation.arrays import FloatArray

# share of the bound: how far above the best bound a step aims
FIRST_OVERSHOOT, LAST_OVERSHOOT = 0.02, 1e-5
PATIENCE = 12  # steps without a better bound before the overshoot shrinks
SHRINK = 0.6
WORTHWHILE = 1e-5  # share of the bound: a smaller gain is no improvement
MEMORY = 0.7  # weight of the last direction (Camerini, Fratta and Maffioli 1975)
FIRST_STEP = 0.02  # share of a mean instance's price: first step of each price in ``polish``
# factor on a step while its slope keeps its sign, and when the sign changes
GROW_STEP, SHRINK_STEP = 1.3, 0.5
ROUND = 15  # steps of ``polish`` on demand prices, and then on capacity prices


def ascend(
    cells: Cells,
    *,
    until: float,
    check: Callable[[], None],
    begin: Prices | None = None,
    overshoot: float = FIRST_OVERSHOOT,
) -> PricedCells:
    """Raise the lower bound on the plan's cost by better prices, from ``begin`` or prices of 0.

    Returns the cells solved at the best prices. The search ends when ``perf_counter()`` reaches
    ``until`` or steps no longer help. Polyak steps aim above the best bound, at first by the share
    ``overshoot`` of it, and by less after steps that fail. ``check`` may raise to end the search.
    """
    current = best = cells.solve_at(cells.zero_prices if begin is None else begin)
    direction = cells.zero_prices
    ceiling = cells.ceiling_usd
    stalled_steps = 0  # steps in a row without much gain
    while overshoot > LAST_OVERSHOOT and best.bound < ceiling and perf_counter() < until:
        check()
        direction = _next_direction(current, direction)
        squared_length = sum(float((part**2).sum()) for part in direction.parts())
        if squared_length <= 0.0:
            break
        aimed_bound = best.bound + overshoot * abs(best.bound)
        polyak_step = (aimed_bound - current.bound) / squared_length
        current = cells.solve_at(current.prices.towards(direction, polyak_step))
        is_worthwhile = current.bound > best.bound + WORTHWHILE * abs(best.bound)
        stalled_steps = 0 if is_worthwhile else stalled_steps + 1
        if current.bound > best.bound:
            best = current
        if stalled_steps >= PATIENCE:
            # Go back to the best prices and aim lower: the aim was too far above the optimum.
            current, direction = best, cells.zero_prices
            overshoot, stalled_steps = overshoot * SHRINK, 0
    return best


def polish(cells: Cells, *, begin: Prices, until: float, check: Callable[[], None]) -> PricedCells:
    """Raise the lower bound from the prices ``begin``: first demand prices, then capacity prices.

    With fixed capacity prices, the bound is a sum over models. With fixed demand prices, it is a
    sum over regions. Each model, and then each region, can therefore keep the best prices that it
    has seen. Returns the cells solved at the last prices.
    """
    prices = _polish_part(cells, begin, of_demand=True, until=until, check=check)
    prices = _polish_part(cells, prices, of_demand=False, until=until, check=check)
    return cells.solve_at(prices)


def _polish_part(
    cells: Cells, prices: Prices, *, of_demand: bool, until: float, check: Callable[[], None]
) -> Prices:
    """Return ``prices`` with better demand prices, or better capacity prices.

    Every price has its own step, which grows while the slope keeps its sign and halves when the
    sign changes (Riedmiller and Braun 1993).
    """
    trial_prices = prices.demand if of_demand else prices.capacity
    step_usd = np.full(trial_prices.shape, FIRST_STEP * float(cells.usd_each.mean()))
    last_direction = np.zeros(trial_prices.shape)
    priced = cells.solve_at(prices)
    # Best prices so far, and the highest part of the bound of each model or region.
    best_prices, highest_parts = trial_prices.copy(), _bound_parts(cells, priced, of_demand)
    for _ in range(ROUND):
        if perf_counter() >= until:
            break
        check()
        direction = np.sign(priced.slope.demand if of_demand else priced.slope.capacity)
        direction *= (trial_prices > 0) | (direction > 0)  # a price of 0 cannot fall
        sign_change = direction * last_direction  # above 0: same sign, below 0: changed
        step_usd[sign_change > 0] *= GROW_STEP
        step_usd[sign_change < 0] *= SHRINK_STEP
        last_direction = direction
        trial_prices = np.maximum(0.0, trial_prices + direction * step_usd)
        priced = cells.solve_at(_with_prices(prices, trial_prices, of_demand))
        bound_parts = _bound_parts(cells, priced, of_demand)
        is_better = bound_parts > highest_parts
        highest_parts = np.where(is_better, bound_parts, highest_parts)
        best_prices[is_better] = trial_prices[is_better]
    return _with_prices(prices, best_prices, of_demand)


def _with_prices(prices: Prices, part: FloatArray, of_demand: bool) -> Prices:
    """Return ``prices`` with ``part`` as demand prices (``of_demand``) or as capacity prices."""
    if of_demand:
        return Prices(prices.capacity, part, prices.caps)
    return Prices(part, prices.demand, prices.caps)


def _bound_parts(cells: Cells, priced: PricedCells, by_model: bool) -> FloatArray:
    """Return the part of the lower bound that each model adds, ``[model]``.

    With ``by_model`` False, return the part that each region adds, ``[region]``.
    """
    part: FloatArray
    if by_model:
        value_usd = priced.prices.demand * cells.joint_tps / cells.mean_tps
        part = priced.lowest_usd.sum(axis=1) + value_usd
    else:
        gpu_usd = priced.prices.capacity * cells.free_gpus
        part = priced.lowest_usd.sum(axis=0) - gpu_usd.sum(axis=1)
    return part


def _next_direction(priced: PricedCells, last: Prices) -> Prices:
    """Return the next direction of the prices: the slope plus a share of the ``last`` direction.

    It is 0 where a price of 0 would fall.
    """
    directions = []
    for price, gradient, last_part in zip(
        priced.prices.parts(), priced.slope.parts(), last.parts(), strict=True
    ):
        can_fall = price > 0
        gradient = np.where(can_fall, gradient, np.maximum(0.0, gradient))
        direction = gradient + MEMORY * last_part
        directions.append(np.where(can_fall, direction, np.maximum(0.0, direction)))
    return Prices(*directions)
