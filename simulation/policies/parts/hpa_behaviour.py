"""The ``behavior`` of a horizontal pod autoscaler: stabilization windows and rate limits.

Source: kubernetes.io, "Horizontal Pod Autoscaling", and the controller's
``stabilizeRecommendationWithBehaviors`` and ``convertDesiredReplicasWithBehaviorRate``.
"""

from collections import deque
from dataclasses import dataclass
from math import ceil, floor

from simulation.arrays import IntArray
from simulation.policies.parts.stability import ROUNDING

Change = tuple[float, int]  # time in seconds; replicas added, below 0: removed


@dataclass(frozen=True, slots=True)
class DirectionLimits:
    """The limits of scaling in one direction.

    Within ``period_s``, the count changes by at most ``percent`` of it or by ``replicas``,
    whichever is more.
    """

    percent: float
    replicas: int
    period_s: float
    window_s: float  # stabilization window


class HpaBehaviour:
    """The stabilization and rate limits of one autoscaler per pool, with its past changes."""

    def __init__(self, up: DirectionLimits, down: DirectionLimits, counts: IntArray) -> None:
        self._up, self._down = up, down
        # The initial fleet counts as recommended.
        self._recommended = [deque([(0.0, int(count))]) for count in counts]
        self._changes: list[deque[Change]] = [deque() for _ in counts]

    def limited_replicas(self, p: int, time_s: float, present: int, recommended: int) -> int:
        """Return the replicas of pool ``p`` after stabilization and rate limits."""
        target = self._apply_stabilization(p, time_s, present, recommended)
        changes = self._changes[p]
        while changes and changes[0][0] <= time_s - max(self._up.period_s, self._down.period_s):
            changes.popleft()
        if target > present:
            target = max(min(target, self._most_replicas(p, time_s, present)), present)
        elif target < present:
            target = min(max(target, self._fewest_replicas(p, time_s, present)), present)
        if target != present:
            changes.append((time_s, target - present))
        return target

    def _most_replicas(self, p: int, time_s: float, present: int) -> int:
        """Return the most replicas of pool ``p`` that the rate limit allows on scale-out."""
        limits = self._up
        added = _sum_changes_since(self._changes[p], time_s - limits.period_s, sign=1)
        at_period_start = present - added
        by_percent = ceil(at_period_start * (1 + limits.percent / 100) - ROUNDING)
        return max(by_percent, at_period_start + limits.replicas)

    def _fewest_replicas(self, p: int, time_s: float, present: int) -> int:
        """Return the fewest replicas of pool ``p`` that the rate limit allows on scale-in."""
        limits = self._down
        removed = -_sum_changes_since(self._changes[p], time_s - limits.period_s, sign=-1)
        at_period_start = present + removed
        by_percent = floor(at_period_start * (1 - limits.percent / 100) + ROUNDING)
        return min(by_percent, at_period_start - limits.replicas)

    def _apply_stabilization(self, p: int, time_s: float, present: int, recommended: int) -> int:
        """Return the recommendation for pool ``p`` after the stabilization windows.

        Scale-out uses the smallest recommendation of its window, and scale-in the largest.
        """
        recent = self._recommended[p]
        recent.append((time_s, recommended))
        while recent[0][0] < time_s - max(self._up.window_s, self._down.window_s):
            recent.popleft()
        up = min(count for at_s, count in recent if at_s >= time_s - self._up.window_s)
        down = max(count for at_s, count in recent if at_s >= time_s - self._down.window_s)
        return min(max(present, up), down)


def _sum_changes_since(changes: deque[Change], after_s: float, *, sign: int) -> int:
    """Return the sum of the changes after ``after_s`` that add (``sign`` 1) or remove (-1)."""
    return sum(change for at_s, change in changes if at_s > after_s and change * sign > 0)
