"""Find the parameter value (level) at which a replay just meets its SLO attainment target.

Attainment rises with the level, except for noise. In fleets of few replicas no level may be near
enough. Then two levels around the target are mixed by time, so that together they meet it. If the
lower one is far below the target, its cost is not comparable. Then the result is the level that
exceeds the target least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from planner.domain.replay.equal_attainment import FAR_BELOW_TARGET

TOLERANCE = 0.001  # of attainment: two results differ by at most 0.2 points (methods.md X4)
MAX_TRIALS = 8  # most replays for one match
FIRST_STEP_SHARE = 0.1  # first step as a share of the range, doubled until the target is enclosed


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a plan in the window, from a replay or from the demand that it covers."""

    cost_usd: float
    gpu_hours: float
    starts: float
    stops: float
    attainment: dict[str, float | None]
    spare: float  # attainment minus target of the tightest interactive tier

    def weighted_mean(self, other: Figures, share: float) -> Figures:
        """Return the mean of both figures, with the weight ``share`` (of time) for ``other``."""

        def mean(first: float, second: float) -> float:
            """Return the weighted mean of one value of both figures."""
            return (1 - share) * first + share * second

        attainment: dict[str, float | None] = {}
        for tier, first in self.attainment.items():
            second = other.attainment[tier]
            attainment[tier] = None if first is None or second is None else mean(first, second)
        return Figures(
            spare=mean(self.spare, other.spare),
            cost_usd=mean(self.cost_usd, other.cost_usd),
            gpu_hours=mean(self.gpu_hours, other.gpu_hours),
            starts=mean(self.starts, other.starts),
            stops=mean(self.stops, other.stops),
            attainment=attainment,
        )


Run = Callable[[float], Figures | None]  # None: no feasible plan at this value


@dataclass(frozen=True, slots=True)
class EqualAttainment:
    """The level at which the attainment target is just met, with the figures there.

    If ``equal`` is False, no level just meets the target: the figures exceed it, or they are below
    it if no level meets it.
    """

    at: tuple[float, ...]  # the level, or the two around the target
    figures: Figures
    equal: bool
    replays: int


@dataclass(eq=False)
class _Trials:
    """The levels tried so far in a search, with their figures.

    ``run`` returns the figures at a level, or None without a feasible plan.
    """

    run: Run
    figures: dict[float, Figures] = field(default_factory=dict)  # by level
    infeasible: int = 0  # tries without a feasible plan

    def __call__(self, level: float) -> Figures | None:
        """Run at a level, record its figures and return them; None without a feasible plan."""
        figures = self.run(level)
        if figures is None:
            self.infeasible += 1
        else:
            self.figures[level] = figures
        return figures

    def spare(self, level: float) -> float:
        """Return attainment minus target at a tried level."""
        return self.figures[level].spare

    @property
    def below(self) -> float | None:
        """Return the largest tried level that misses the target, or None."""
        return max((level for level in self.figures if self.spare(level) < 0), default=None)

    @property
    def above(self) -> float | None:
        """Return the smallest tried level that meets the target, or None."""
        return min((level for level in self.figures if self.spare(level) >= 0), default=None)

    @property
    def nearest(self) -> float:
        """Return the tried level whose attainment is nearest to the target."""
        return min(self.figures, key=lambda level: abs(self.spare(level)))

    def at(self, level: float, *, equal: bool) -> EqualAttainment:
        """Return a tried level as the result of the search; ``equal``: it just meets the target."""
        return EqualAttainment((level,), self.figures[level], equal, replays=len(self.figures))


def match_attainment(
    run: Run, begin: float, low: float, high: float, tries: int = MAX_TRIALS
) -> EqualAttainment | None:
    """Find the level from ``low`` to ``high`` at which ``run`` just meets the target.

    The search starts at ``begin``, and makes at most ``tries`` runs. In growing steps, it looks for
    a level below and a level above the target. Then it interpolates between these two. Return None
    if no tried level has a feasible plan.
    """
    trials = _Trials(run)
    level, step = min(max(begin, low), high), FIRST_STEP_SHARE * (high - low)
    while len(trials.figures) + trials.infeasible < tries:
        figures = trials(level)
        if figures is None:  # no feasible plan: search below this level
            high, step = level, FIRST_STEP_SHARE * (level - low)
            feasible_below = max((tried for tried in trials.figures if tried < level), default=low)
            level = (feasible_below + level) / 2
            continue
        if abs(figures.spare) <= TOLERANCE:
            break
        below, above = trials.below, trials.above  # levels next to the target, if tried
        if below is None or above is None:
            next_level = level + (step if figures.spare < 0 else -step)
            level, step = min(max(next_level, low), high), 2 * step
        elif above <= below:
            # Noise: a smaller level attains more, so interpolation is void.
            break
        else:
            level = _interpolated_zero(below, trials.spare(below), above, trials.spare(above))
        if level in trials.figures:
            break
    return _nearest_trial(trials) if trials.figures else None


def _interpolated_zero(below: float, shortfall: float, above: float, spare: float) -> float:
    """Return the next level to try: where the line through two attainments meets the target.

    ``shortfall`` (negative) and ``spare`` are attainment minus target at the levels ``below`` and
    ``above``.
    """
    # Far below the target, attainment is not linear: take the middle.
    share = 0.5 if shortfall < -FAR_BELOW_TARGET else -shortfall / (spare - shortfall)
    # Keep a fifth of the distance to both levels, so that the bracket always shrinks.
    return below + min(max(share, 0.2), 0.8) * (above - below)


def _nearest_trial(trials: _Trials) -> EqualAttainment:
    """Return the tried level that just meets the target, or a mix of the two next to it.

    Without levels on both sides of the target, it is the nearest one, and not ``equal``.
    """
    figures, spare = trials.figures, trials.spare
    if abs(spare(trials.nearest)) <= TOLERANCE:
        return trials.at(trials.nearest, equal=True)
    # Take the levels with the attainments closest to the target, below and above it.
    missing = [level for level in figures if spare(level) < 0]
    meeting = [level for level in figures if spare(level) >= 0]
    if not meeting:
        return trials.at(trials.nearest, equal=False)
    above = min(meeting, key=lambda level: (spare(level), figures[level].cost_usd))
    below = max(missing, key=spare, default=None)
    if below is None or spare(below) < -FAR_BELOW_TARGET:
        return trials.at(above, equal=False)
    share = -spare(below) / (spare(above) - spare(below))
    mixed = figures[below].weighted_mean(figures[above], share)
    return EqualAttainment((below, above), mixed, equal=True, replays=len(figures))
