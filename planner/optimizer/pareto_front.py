"""Trade two objectives off: the Pareto front and its knee."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")

SLACK = 1e-6  # share by which a limit is widened, because solvers meet limits only to a tolerance
TIE = 1e-4  # weight of the other objective, which decides between plans of equal first objective


@dataclass(frozen=True, slots=True)
class FrontPoint(Generic[T]):
    """One plan of the front, with its two objectives over all periods."""

    first: float
    second: float
    first_bound: float  # lower bound on the first objective of plans within the same second one
    plan: T


def pareto_front(
    least_first: Callable[[float], FrontPoint[T] | None],
    least_second: Callable[[], FrontPoint[T] | None],
    points: int,
) -> tuple[FrontPoint[T], ...]:
    """Return up to ``points`` plans of the Pareto front, in rising order of the second objective.

    ``least_first(limit)`` minimises the first objective while the second is at most ``limit``.
    ``least_second()`` minimises the second objective alone. Both return None without a plan.

    The limits are spread over the range of the second objective (epsilon constraints; Haimes,
    Lasdon and Wismer 1971). This finds plans that no weighted sum can. Dominated plans are omitted.
    The front is empty if ``least_second()``, or ``least_first`` without a limit, has no plan.
    """
    best_second, best_first = least_second(), least_first(math.inf)
    if best_second is None or best_first is None:
        return ()
    limits = np.linspace(best_second.second, best_first.second, points)
    plans = [best_first, *(least_first(float(limit) * (1 + SLACK)) for limit in limits[:-1])]
    candidates = sorted(
        (point for point in plans if point is not None),
        key=lambda point: (point.second, point.first),
    )
    front: list[FrontPoint[T]] = []
    for candidate in candidates:
        if not front or candidate.first < front[-1].first - SLACK * abs(front[-1].first):
            front.append(candidate)
    return tuple(front)


def knee(points: list[tuple[float, float]]) -> int | None:
    """Return the index of the knee: the point furthest below the line between the front's ends.

    ``points`` are pairs of objectives. Both are scaled to their range on the front (Das, On
    characterizing the knee of the Pareto curve, 1999). None: fewer than three points, or no point
    below the line.
    """
    if len(points) < 3:
        return None
    objectives = np.array(points, float)
    spread = objectives.max(axis=0) - objectives.min(axis=0)
    if np.any(spread <= 0):
        return None
    scaled = (objectives - objectives.min(axis=0)) / spread
    depth = 1.0 - scaled.sum(axis=1)  # the ends lie on x + y = 1
    lowest_point = int(np.argmax(depth))
    return lowest_point if depth[lowest_point] > SLACK else None
