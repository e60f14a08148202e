"""One forecaster driving the plan over a window: what it foresaw, and what a plan on any height of
that comes to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from planner.policies.choice import policy_of
from planner.studies.backtest.matching import Figures
from planner.studies.planning.inputs import PlanInput, Planned, quantiles_of
from planner.studies.planning.planning import load_of, plan_load
from planner.studies.progress import Progress, part
from planner.studies.replay.replay import run_policy
from planner.studies.traffic.forecasts import Height, Rolled, SeriesForecast, rolled
from planner.studies.traffic.groups import Group, groups_of, series_of
from planner.studies.traffic.quantile import TOP, Past, PlannedQuantile, share_covered
from planner.studies.values import PolicyRun, Study
from simulation.metrics import Summary

PERFECT = "perfect"
LEAST = 0.05  # quantile that forecasts hold
# The knob: the quantile itself from LEAST to TOP; below it a part of the lowest, above it up to
# ``MOST_TIMES`` the highest. Of a perfect forecast every quantile is the truth: so many times that.
MOST_TIMES = 3.0
LOW, HIGH = 0.0, 1.0
KNOBS = np.linspace(LOW, HIGH, 81)
Heights = tuple[Height, ...]  # by group of tiers


def height_at(knob: float, *, perfect: bool = False) -> Height:
    """What of a forecast the knob, from 0 to 1, means to plan for; more with every turn."""
    if perfect:
        return Height(None, 0.4 + 1.2 * knob)
    if knob < LEAST:
        return Height(LEAST, 0.2 + 0.8 * knob / LEAST)
    if knob > TOP:
        return Height(TOP, 1.0 + (MOST_TIMES - 1.0) * (knob - TOP) / (HIGH - TOP))
    return Height(float(knob))


def knob_of(height: Height) -> float:
    """Where the knob stands for a height that was chosen."""
    assert height.level is not None
    if height.times > 1.0:
        return min(HIGH, TOP + (height.times - 1.0) * (HIGH - TOP) / (MOST_TIMES - 1.0))
    return height.level


@dataclass(eq=False)
class Driver:
    """``method`` on a study. What it foresees is told once; ``at`` and ``replayed`` do the rest."""

    study: Study
    method: str
    seed: int
    groups: tuple[Group, ...]
    rolled: tuple[tuple[int, Rolled], ...]  # with the group each is of
    _planned: dict[Heights, Planned] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, study: Study, method: str, seed: int, progress: Progress) -> Driver:
        """Raises SeriesTooShort where the method cannot be fitted on what came before."""
        inputs = study.plan_input
        groups = groups_of(inputs.hardware, apart=inputs.settings.tiers_apart)
        series = [(g, demand) for g, group in enumerate(groups)
                  for _, demand in series_of(inputs.traffic, group)]  # fmt: skip
        rollings = []
        for i, (g, demand) in enumerate(series):
            progress(i / len(series), f"Forecasting with {method}: {demand.key.model}")
            rollings.append(
                (g, rolled(demand, inputs.window, method, at_once=inputs.at_once_asked))
            )
        return cls(study, method, seed, groups, tuple(rollings))

    @property
    def given(self) -> PlanInput:
        return self.study.plan_input

    @property
    def perfect(self) -> bool:
        return self.method == PERFECT

    def heights(self, knob: float) -> Heights:
        """The same for every group of tiers."""
        return (height_at(knob, perfect=self.perfect),) * len(self.groups)

    def forecasts(self, heights: Heights) -> tuple[SeriesForecast, ...]:
        return tuple(rolling.at(heights[g]) for g, rolling in self.rolled)

    def chosen(self, progress: Progress) -> tuple[PlannedQuantile, ...]:
        """What the days before the window choose for it, by group of tiers."""
        section = self.given.settings.forecast.model_copy(
            update={"method": self.method, "quantile": None, "quantiles": {}}
        )
        quantiles = replace(quantiles_of(self.given), forecast=section)
        return quantiles.of(at_once=self.given.at_once_asked, progress=progress)

    def planned(self, heights: Heights, progress: Progress) -> Planned:
        """Raises Infeasible where there is no plan for so much."""
        if heights not in self._planned:
            forecasts = self.forecasts(heights)
            load = load_of(self.given, forecasts)
            plan = plan_load(self.given, load, progress)
            self._planned[heights] = Planned(plan, forecasts, load)
        return self._planned[heights]

    def replayed(self, heights: Heights, progress: Progress) -> PolicyRun:
        planned = self.planned(heights, part(progress, 0.0, 0.3))
        return run_policy(
            self.study, policy_of("lt-i"), seed=self.seed, progress=part(progress, 0.3, 1.0),
            planned=planned,
        )  # fmt: skip

    def past(self) -> list[Past]:
        """Of the window itself: what came, and the room at each of ``KNOBS``."""
        past = []
        for _, rolling in self.rolled:
            per_period = rolling.window.bins_per_period
            room = np.stack([rolling.planned(height_at(k, perfect=self.perfect)) for k in KNOBS])
            room = room.reshape(len(KNOBS), -1, per_period).max(axis=2)
            past.append(Past(room, rolling.actual.reshape(-1, per_period)))
        return past

    def covering(self, share: float) -> float:
        """The knob at which ``share`` of the window's own demand finds room: in hindsight."""
        covered = share_covered(self.past())
        knob = int(np.searchsorted(covered, share))
        return float(KNOBS[min(knob, len(KNOBS) - 1)])


def figures_of(study: Study, run: PolicyRun) -> Figures:
    """Of a replay; stops are those of the instances asked for over time."""
    summary = run.summary
    return Figures(
        spare=spare(study, summary),
        cost_usd=summary.cost_usd,
        gpu_hours=summary.gpu_hours,
        starts=float(sum(summary.starts.values())),
        stops=_stops(run),
        attainment=summary.slo_attainment,
    )


def spare(study: Study, summary: Summary) -> float:
    """By how much the interactive tier that has least attains more than it asks for."""
    return min(
        (
            share - tier.attainment
            for tier in study.hardware.tiers
            if not tier.deferrable and (share := summary.slo_attainment.get(tier.name)) is not None
        ),
        default=0.0,
    )


def _stops(run: PolicyRun) -> float:
    """Instances that went, counted from interval to interval."""
    up = run.series.ready + run.series.starting
    return float(np.maximum(0, -np.diff(np.rint(up), axis=1)).sum())
