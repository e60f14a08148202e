"""Earlier windows of a study: what can be tried before the window begins (methods.md X5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from planner.errors import ScenarioError
from planner.studies.planning.planning import flat_at_peak, flat_before
from planner.studies.progress import Progress, silent
from planner.studies.random_streams import Stream, generator
from planner.studies.replay.flat import holds, smallest_flat
from planner.studies.replay.flat_window import Known
from planner.studies.traffic.busier import Rise, grown, rises, times_by_model
from planner.studies.traffic.demand import Demand
from planner.studies.traffic.window import DAY_S, Window
from planner.studies.values import Study
from simulation.arrays import IntArray
from simulation.cells import simulate_cell
from simulation.policies.flat import Flat
from simulation.replayed import shares_met

WEEK = 7  # days
NEARLY = 0.75  # of the window is as good as all of it
BLIND = 0.1  # share of a window's bins that may be gaps
MOST = 3  # earlier windows: the last day, the same weekday and the day before the last
QUIET = 0.1  # of the nearest's requests: less says nothing of what a fleet has to do (assumed)
NEAR = 0.005  # attainment within this of the best there can be is as good
AMPLE = 4  # times the flat fleet at peak: there requests hardly wait for each other
NONE_BEFORE = (
    "policies: 'flat-before' is sized on the days before, and the traffic has none before the "
    "window; leave it out, or choose a later horizon.start."
)
NONE_WANTED = (
    "policies: 'flat-before' is sized on the days before the window, and none are rehearsed on "
    "here (rehearse 0); rehearse on 1 to 3."
)
HISTORY_BINS = 2  # before its first decision, as of any window


@dataclass(frozen=True, slots=True)
class Goals:
    """The attainment that is ``wanted`` on the days before, by tier; ``can`` says whether any fleet
    meets every tier there."""

    wanted: dict[str, float]
    can: bool

    def enough(self, study: Study) -> dict[str, float]:
        """What is wanted on days unlike those before: the tiers themselves, with nothing left
        over."""
        tiers = study.hardware.tiers
        return {tier.name: min(self.wanted[tier.name], tier.attainment) for tier in tiers}


@dataclass(frozen=True, slots=True, eq=False)
class Busier:
    """The ``day``-th of the days before with as many more requests of each model as a day may have
    over the busiest of them for it; what is forecast there sees them as they come."""

    rise: Rise
    day: int
    study: Study


@dataclass(eq=False)
class Earlier:
    """The windows of ``study`` to rehearse on, at most ``most``, each as a study of its own, and
    what is searched on them; made when first asked for."""

    study: Study
    most: int = MOST
    history_s: float = DAY_S  # before all but the nearest, for what is forecast there to go by
    _flat: dict[tuple[int, bool], IntArray] = field(default_factory=dict, init=False)
    _known: Known = field(default_factory=dict, init=False)  # of flat fleets on them
    _goals: dict[int, Goals] = field(default_factory=dict, init=False)

    @cached_property
    def studies(self) -> tuple[Study, ...]:
        """The nearest first; those without a request are left out. A quiet one counts for none of
        the others, which it would stand in for; of several the nearest is kept."""
        studies: list[Study] = []
        quiet = 0
        demand = self.study.traffic.demand
        for window in earlier_windows(self.study.window, demand):
            if len(studies) - quiet == self.most:
                break
            if studies and window.origins_s[0] < demand.start_s + self.history_s:
                continue
            study = study_at(self.study, window)
            if studies and len(study.trace) < QUIET * len(studies[0].trace):
                if quiet or not len(study.trace):
                    continue
                quiet += 1
            if len(study.trace):
                studies.append(study)
        return tuple(studies)

    @property
    def days(self) -> bool:
        """Whether they are days before, at the same time of day: not the stretch right before."""
        start_s = self.study.window.start_s
        return all((start_s - study.window.start_s) % DAY_S == 0 for study in self.studies)

    @property
    def reserve(self) -> float:
        return reserve_of(len(self.studies))

    @cached_property
    def busier(self) -> Busier | None:
        """The busiest of them with room for growth of each model put to the test; None where the
        days before tell of none."""
        if not self.studies:
            return None
        traffic, window = self.study.traffic, self.study.window
        before = [study.window for study in self.studies]
        rise = rises(traffic.demand, traffic.models, window, before)
        if rise is None:
            return None
        counts = np.array([
            np.bincount(study.trace.model, minlength=len(traffic.models)) / study.window.duration_s
            for study in self.studies
        ])  # fmt: skip
        day = int(np.argmax(counts.sum(axis=1)))
        busiest = self.studies[day]
        # Each model as many times what it had on its own busiest of them.
        grows = np.array([growth.times for growth in rise.models])
        shares = grows * counts.max(axis=0) / np.where(counts[day] > 0, counts[day], np.inf)
        rng = generator(busiest.settings.seed, Stream.STRAYS)
        trace = times_by_model(busiest.trace, shares, busiest.window.bin_s, rng)
        by_name = dict(zip(traffic.models, shares.tolist(), strict=True))
        demand = grown(traffic.demand, by_name, busiest.window.start_s, busiest.window.end_s)
        return Busier(
            rise,
            day,
            replace(busiest, trace=trace, traffic=replace(busiest.traffic, demand=demand)),
        )

    def flat(self, seed: int, progress: Progress = silent, *, room: bool = True) -> IntArray:
        """``[pools]`` the smallest flat fleet that meets every tier on all of them, with ``room``
        for growth where there are GPUs for it."""
        if not self.studies:
            raise ScenarioError(NONE_BEFORE if self.most else NONE_WANTED)
        if (seed, room) not in self._flat:
            search = self._roomy if room else self._least
            self._flat[seed, room] = search(seed, progress)
        return self._flat[seed, room]

    @property
    def flats(self) -> dict[tuple[int, bool], IntArray]:
        """The smallest fleets found so far, by seed and ``room``."""
        return dict(self._flat)

    def remember(self, flats: dict[tuple[int, bool], IntArray]) -> None:
        """Take over fleets that another process found."""
        self._flat |= flats

    def _least(self, seed: int, progress: Progress) -> IntArray:
        goals = [self.goals(seed).wanted] * len(self.studies)
        return smallest_flat(
            *self.studies, seed=seed, progress=progress, goals=goals, known=self._known
        )

    def _roomy(self, seed: int, progress: Progress) -> IntArray:
        least, goals = self.flat(seed, progress, room=False), self.goals(seed)
        if self.busier is None:
            return least
        its = self.busier.study
        enough = goals.enough(its)
        known = self._known
        if holds(its, least, enough, seed, known):
            return least
        goals_each = [enough, *[goals.wanted] * len(self.studies)]
        more = smallest_flat(
            its, *self.studies, seed=seed, progress=progress, goals=goals_each, known=known
        )
        return more if holds(its, more, enough, seed, known) else least

    def goals(self, seed: int) -> Goals:
        """What is wanted on them."""
        if seed not in self._goals:
            self._goals[seed] = goals_on(self.studies, seed)
        return self._goals[seed]


def reserve_of(windows: int) -> float:
    """Of what a tier may miss, the share to be left over on so many windows for one that is harder
    than all of them: as likely as that is, were they and the one to come in any order."""
    return 1.0 / (windows + 1)


def goals_on(studies: Sequence[Study], seed: int) -> Goals:
    """Of the requests of each tier that may be missed, and that an ample flat fleet does not miss,
    ``reserve_of`` as many windows is to be left over: what no fleet serves in time, such as prompts
    too long for their limit, can be no reserve. Where an ample fleet misses the tier itself, what
    comes near to it is wanted."""
    shares: dict[str, float] = {}
    can = True
    for study in studies:
        ample = study.fleet(study.pools(study.peak))
        counts = np.array([min(pool.maximum, AMPLE * max(1, pool.initial)) for pool in ample.pools])
        duration_s = study.window.duration_s
        flat = Flat(counts)
        done = simulate_cell(
            study.trace,
            study.fleet(counts),
            flat,
            cells=study.cells,
            seed=seed,
            duration_s=duration_s,
        )
        best = shares_met(done)
        for tier in ample.tiers:
            most = best[tier.name]
            if most is None:
                most = 1.0
            can &= most >= tier.attainment
            goal = goal_of(tier.attainment, most, reserve_of(len(studies)))
            shares[tier.name] = min(shares.get(tier.name, 1.0), goal)
    return Goals(shares, can)


def goal_of(target: float, most: float, reserve: float) -> float:
    """The attainment to aim at for a tier, where ``most`` is what an ample fleet attains."""
    return target + reserve * (most - target) if most >= target else max(0.0, most - NEAR)


def study_at(study: Study, window: Window) -> Study:
    """The same hardware and settings at another window of the traffic, with the sizes that the
    first decision of ``study`` goes by: what is known before its window begins."""
    seed, cells = study.settings.seed, study.cells
    trace = study.traffic.requests(window.start_s, window.end_s, seed, cells=cells)
    nothing = np.zeros(study.hardware.minimum.shape, np.int64)
    sizes = replace(study.sizes, later=(), at=None)
    inputs = replace(study.plan_input, window=window, sizes=sizes, current=nothing)
    peak, misfit = flat_at_peak(inputs)
    before = flat_before(inputs)
    return replace(
        study, window=window, sizes=sizes, trace=trace, peak=peak, misfit=misfit, before=before
    )


def earlier_windows(window: Window, demand: Demand) -> tuple[Window, ...]:
    """Windows of the same time of day that are over when the window's first decision falls: the
    last day, the same weekday, then the days before, nearest first. They are as long as the window,
    or end with the last whole period that is known at that decision. Where no day lies before it:
    the stretch right before that decision, as long as the window or as there is.
    """
    known = float(window.origins_s[0])
    lead = float(np.ceil(window.lead_s / window.bin_s - 1e-9) * window.bin_s)
    begins = demand.start_s + HISTORY_BINS * demand.bin_s + lead

    def cut(start: float) -> Window | None:
        """From ``start`` on what is known of as long a window."""
        periods = np.floor((min(start + window.duration_s, known) - start) / window.period_s + 1e-9)
        end = start + float(periods) * window.period_s
        if start < begins - 1e-6 or periods < 1:
            return None
        return replace(window, start_s=start, end_s=end, ahead=False)

    windows: list[Window] = []
    days = int(max(0.0, window.start_s - begins) // DAY_S)
    if DAY_S % demand.bin_s == 0:  # else no bin begins a day before another
        moved = {day: cut(window.start_s - DAY_S * day) for day in range(1, days + 1)}
        long = NEARLY * window.duration_s
        as_long = {
            day: moved_window
            for day, moved_window in moved.items()
            if moved_window and moved_window.duration_s >= long
        }
        order = dict.fromkeys((*list(as_long)[:1], WEEK, *as_long))
        windows = [as_long[day] for day in order if day in as_long]
    if not windows:
        periods = min(np.floor((known - begins) / window.period_s + 1e-9), _periods(window))
        right_before = cut(known - float(periods) * window.period_s)
        windows = [right_before] if right_before else []
    return tuple(moved_window for moved_window in windows if _seen(moved_window, demand))


def _periods(window: Window) -> int:
    return round(window.duration_s / window.period_s)


def _seen(window: Window, demand: Demand) -> bool:
    """Whether nearly all of it was observed."""
    bins = round(window.duration_s / window.bin_s)
    return demand.gaps(window.start_s, window.end_s) <= BLIND * bins
