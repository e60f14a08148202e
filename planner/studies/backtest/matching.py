"""What serves as well as was asked for, no better: a knob turned until the attainment is that.

Attainment rises with the knob but for chance. Where no setting is near enough, as in fleets of few
whole instances, the two around it stand in, each for so large a part of the time that together they
attain what is asked for; unless one of them falls so far short that its cost says nothing: then it
is the least that attains enough, and that is more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from planner.studies.replay.equal import HOPELESS

NEAR = 0.001  # of attainment: two that are as near are within 0.2 points of each other (X4)
TRIES = 8  # replays for one match, at most
STEP = 0.1  # of the knob's range, doubled until the other side is found


@dataclass(frozen=True, slots=True)
class Figures:
    """What a replay of the window came to. ``spare``: by how much the interactive tier that has
    least attains more than it asks for; below 0: less."""

    spare: float
    cost_usd: float
    gpu_hours: float
    starts: float
    stops: float
    attainment: dict[str, float | None]

    def mixed(self, other: Figures, share: float) -> Figures:
        """``share`` of the time of the other."""

        def between(ours: float, theirs: float) -> float:
            return (1 - share) * ours + share * theirs

        return Figures(
            **{
                name: between(getattr(self, name), getattr(other, name))
                for name in ("spare", "cost_usd", "gpu_hours", "starts", "stops")
            },
            attainment={
                tier: None if ours is None or (theirs := other.attainment[tier]) is None
                else between(ours, theirs)
                for tier, ours in self.attainment.items()
            },
        )  # fmt: skip


Run = Callable[[float], Figures | None]  # None: there is no plan for so much


@dataclass(frozen=True, slots=True)
class Matched:
    """``at`` is the knob, or the two around it; ``equal`` is False where what is asked for was not
    reached from both sides: then it attains more, or where nothing attains enough less."""

    at: tuple[float, ...]
    figures: Figures
    equal: bool
    replays: int


@dataclass(eq=False)
class _Tried:
    run: Run
    seen: dict[float, Figures] = field(default_factory=dict)

    barred: int = 0  # tries at which there was no plan

    def __call__(self, knob: float) -> Figures | None:
        figures = self.run(knob)
        if figures is None:
            self.barred += 1
        else:
            self.seen[knob] = figures
        return figures

    @property
    def below(self) -> float | None:
        """The nearest that attains too little."""
        return max((knob for knob, figures in self.seen.items() if figures.spare < 0), default=None)

    @property
    def above(self) -> float | None:
        """The least that attains enough."""
        return min(
            (knob for knob, figures in self.seen.items() if figures.spare >= 0), default=None
        )

    @property
    def nearest(self) -> float:
        return min(self.seen, key=lambda knob: abs(self.seen[knob].spare))


def matched(run: Run, begin: float, low: float, high: float, tries: int = TRIES) -> Matched | None:
    """``run`` at the knob, within ``[low, high]``, where nothing is spared and nothing lacks; None
    where it has an answer nowhere."""
    tried = _Tried(run)
    knob, step = min(max(begin, low), high), STEP * (high - low)
    while len(tried.seen) + tried.barred < tries:
        figures = tried(knob)
        if figures is None:  # so much cannot be had
            high, step = knob, STEP * (knob - low)
            knob = (max((seen for seen in tried.seen if seen < knob), default=low) + knob) / 2
            continue
        if abs(figures.spare) <= NEAR:
            break
        below, above = tried.below, tried.above
        if below is None or above is None:
            knob, step = (
                min(max(knob + (step if figures.spare < 0 else -step), low), high),
                2 * step,
            )
        elif above <= below:  # by chance less attains more: what lies between tells nothing
            break
        else:
            knob = _between(below, tried.seen[below].spare, above, tried.seen[above].spare)
        if knob in tried.seen:
            break
    return _best(tried) if tried.seen else None


def _between(below: float, lacks: float, above: float, spare: float) -> float:
    """Where a line through both crosses nothing, kept away from either end."""
    share = 0.5 if lacks < -HOPELESS else -lacks / (spare - lacks)
    return below + min(max(share, 0.2), 0.8) * (above - below)


def _best(tried: _Tried) -> Matched:
    seen, nearest, count = tried.seen, tried.nearest, len(tried.seen)
    if abs(seen[nearest].spare) <= NEAR:
        return Matched((nearest,), seen[nearest], True, count)
    # The two whose attainments lie closest around what is asked for.
    short = [knob for knob, figures in seen.items() if figures.spare < 0]
    more = [knob for knob, figures in seen.items() if figures.spare >= 0]
    below = max(short, key=lambda knob: seen[knob].spare, default=None)
    above = min(more, key=lambda knob: (seen[knob].spare, seen[knob].cost_usd), default=None)
    if above is None:
        return Matched((nearest,), seen[nearest], False, count)
    if below is None or seen[below].spare < -HOPELESS:
        return Matched((above,), seen[above], False, count)
    share = -seen[below].spare / (seen[above].spare - seen[below].spare)
    return Matched((below, above), seen[below].mixed(seen[above], share), True, count)
