"""Choose earlier windows of a study for backtests, and search on them (methods.md X5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from planner.domain.planning.planning import flat_at_peak, flat_before
from planner.domain.progress import Progress, silent
from planner.domain.random_streams import Stream, generator
from planner.domain.replay.backlog import carried_into
from planner.domain.replay.static_replay import Known
from planner.domain.replay.static_search import holds, smallest_flat
from planner.domain.study import Study
from planner.domain.traffic.day_growth import Rise, grown, rises, times_by_model
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.window import DAY_S, Window
from planner.errors import ScenarioError
from simulation.arrays import IntArray
from simulation.cells import simulate_cell
from simulation.policies.static import Static
from simulation.trace_replay import shares_met

WEEK = 7  # days
NEARLY = 0.75  # a backtest window of this share of the length counts as full
BLIND = 0.1  # share of a window's bins that may be gaps
MOST = 3  # windows: the last day, the same weekday and the day before the last
QUIET = 0.1  # share of the nearest window's requests, below which one is quiet (assumed)
NEAR = 0.005  # attainments within this of the best count as equal
AMPLE = 4  # times the static fleet for the peak: requests hardly wait there
NONE_BEFORE = (
    "policies: 'flat-before' is sized on the days before, and the traffic has none before the "
    "window; leave it out, or choose a later horizon.start."
)
NONE_WANTED = (
    "policies: 'flat-before' is sized on the days before the window, and none are rehearsed on "
    "here (rehearse 0); rehearse on 1 to 3."
)
HISTORY_BINS = 2  # history needed before the first decision of a window


@dataclass(frozen=True, slots=True)
class Goals:
    """Goals of a backtest: attainment by tier, and whether any fleet meets every tier there."""

    wanted: dict[str, float]
    can: bool

    def enough(self, study: Study) -> dict[str, float]:
        """Return the goals on days unlike the earlier ones: the SLO targets, no reserve."""
        tiers = study.hardware.tiers
        return {tier.name: min(self.wanted[tier.name], tier.attainment) for tier in tiers}


@dataclass(frozen=True, slots=True, eq=False)
class Busier:
    """Backtest day number ``day`` with more requests, to test headroom for growth.

    Each model grows as far as a day may exceed the busiest earlier day of that model. Forecasts
    on this day see the added requests as they arrive.
    """

    rise: Rise
    day: int
    study: Study


@dataclass(eq=False)
class Earlier:
    """Backtest windows of ``study``, at most ``most``, each as a study of its own.

    They are computed when first used.
    """

    study: Study
    most: int = MOST
    history_s: float = DAY_S  # needed for forecasts in all windows but the nearest
    _flat: dict[tuple[int, bool], IntArray] = field(default_factory=dict, init=False)
    _known: Known = field(default_factory=dict, init=False)  # of static fleets
    _goals: dict[int, Goals] = field(default_factory=dict, init=False)

    @cached_property
    def studies(self) -> tuple[Study, ...]:
        """Windows as studies, the nearest first; windows without requests are left out.

        A quiet window does not count toward ``most``. Of several quiet ones the nearest is kept.
        """
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
        """Whether all windows are earlier days at the same time of day.

        It is False for the stretch right before the window.
        """
        start_s = self.study.window.start_s
        return all((start_s - study.window.start_s) % DAY_S == 0 for study in self.studies)

    @property
    def reserve(self) -> float:
        return reserve_of(len(self.studies))

    @cached_property
    def busier(self) -> Busier | None:
        """Busiest window with growth added to each model; None if earlier days show no growth."""
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
        # Scale each model relative to its own busiest window, which may be another day.
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
        """Return the smallest static fleet ``[pools]`` that meets every tier on all windows.

        ``room`` adds headroom for growth if there are enough GPUs. ScenarioError is raised if there
        is no window.
        """
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
        """Return the goals on the windows, computed once per seed."""
        if seed not in self._goals:
            self._goals[seed] = goals_on(self.studies, seed)
        return self._goals[seed]


def reserve_of(windows: int) -> float:
    """Return the share of the allowed misses to keep in reserve for a harder window.

    It is the probability that the next window is the hardest, if their order is random.
    """
    return 1.0 / (windows + 1)


def goals_on(studies: Sequence[Study], seed: int) -> Goals:
    """Return the goals on backtest windows.

    An ample static fleet shows how many requests of each tier can be served in time. The reserve
    (``reserve_of``) is a share of the allowed misses beyond those. Requests that no fleet serves
    in time, such as prompts too long for their limit, can be no reserve. If an ample fleet misses
    the target, the goal is just below what it attains.
    """
    shares: dict[str, float] = {}
    can = True
    for study in studies:
        ample = study.fleet(study.pools(study.peak))
        counts = np.array([min(pool.maximum, AMPLE * max(1, pool.initial)) for pool in ample.pools])
        duration_s = study.window.duration_s
        flat = Static(counts)
        done = simulate_cell(
            study.trace,
            study.fleet(counts),
            flat,
            cells=study.cells,
            seed=seed,
            duration_s=duration_s,
            carried=study.carried,
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
    """Return the goal of a tier; ``most`` is the attainment of an ample fleet."""
    return target + reserve * (most - target) if most >= target else max(0.0, most - NEAR)


def study_at(study: Study, window: Window) -> Study:
    """Return the study at another window, with the same hardware and settings.

    The capacities are those known at the first decision of ``study``, before its window begins.
    """
    seed, cells = study.settings.seed, study.cells
    trace = study.traffic.requests(window.start_s, window.end_s, seed, cells=cells)
    nothing = np.zeros(study.hardware.minimum.shape, np.int64)
    sizes = replace(study.sizes, later=(), at=None)
    inputs = replace(study.plan_input, window=window, sizes=sizes, current=nothing)
    peak, misfit = flat_at_peak(inputs)
    before = flat_before(inputs)
    moved = replace(
        study, window=window, sizes=sizes, trace=trace, peak=peak, misfit=misfit, before=before
    )
    return replace(moved, carried=carried_into(moved))


def earlier_windows(window: Window, demand: Demand) -> tuple[Window, ...]:
    """Return windows at the same time of day that end before the first decision.

    The order is the last day, the same weekday, then the other days, the nearest first. A window
    is as long as ``window``, or ends with the last whole period known at that decision. Without
    an earlier day, return the stretch right before that decision, at most as long as the window.
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
    """Return whether nearly all of the window was observed."""
    bins = round(window.duration_s / window.bin_s)
    return demand.gaps(window.start_s, window.end_s) <= BLIND * bins
