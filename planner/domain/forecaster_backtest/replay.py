"""Plan a window on one forecaster, at any forecast level, and replay that plan.

The forecast level is one number from 0 to 1: the higher, the more demand is planned for. From
``LOWEST_QUANTILE`` to ``TOP_QUANTILE`` it is the quantile itself. Below, it is a part of the lowest
quantile. Above, it is up to ``MAX_FACTOR`` the highest. A perfect forecast has no quantiles, so
there it is a factor. ``PlanningLevel`` is what a forecast level stands for: a quantile times a
factor.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from planner.domain.forecaster_backtest.equal_attainment import Figures
from planner.domain.planning.inputs import PlanInput, PlannedWindow, quantiles_of
from planner.domain.planning.planning import load_of, plan_load
from planner.domain.progress import Progress, part
from planner.domain.replay.policy_context import SharedInputs
from planner.domain.replay.replay import run_policy
from planner.domain.study import PolicyRun, Study
from planner.domain.traffic.forecast_percentile import (
    TOP_QUANTILE,
    PastPeriods,
    PlannedQuantile,
    share_covered,
)
from planner.domain.traffic.forecasts import (
    PlanningLevel,
    RolledForecast,
    SeriesForecast,
    roll_forecast,
)
from planner.domain.traffic.groups import Group, groups_of, series_of
from planner.policies.choice import policy_of
from simulation.metrics import Summary

PERFECT = "perfect"
LOWEST_QUANTILE = 0.05  # lowest quantile of a forecast
MAX_FACTOR = 3.0
LOWEST_LEVEL, HIGHEST_LEVEL = 0.0, 1.0  # forecast levels
COVERAGE_LEVELS = np.linspace(LOWEST_LEVEL, HIGHEST_LEVEL, 81)  # at which coverage is computed
PlanningLevels = tuple[PlanningLevel, ...]  # by group of tiers


def planning_level_at(level: float, *, perfect: bool = False) -> PlanningLevel:
    """Return what to plan for at a forecast level (0 to 1): a quantile times a factor.

    ``perfect``: the forecast is the truth, which has no quantiles.
    """
    if perfect:  # the truth itself is in the middle: 1.0 at level 0.5
        return PlanningLevel(quantile=None, factor=0.4 + 1.2 * level)
    if level < LOWEST_QUANTILE:
        return PlanningLevel(LOWEST_QUANTILE, 0.2 + 0.8 * level / LOWEST_QUANTILE)
    if level > TOP_QUANTILE:
        return PlanningLevel(
            TOP_QUANTILE,
            1.0 + (MAX_FACTOR - 1.0) * (level - TOP_QUANTILE) / (HIGHEST_LEVEL - TOP_QUANTILE),
        )
    return PlanningLevel(float(level))


def forecast_level_of(planning_level: PlanningLevel) -> float:
    """Return the forecast level of a quantile and factor, the inverse of ``planning_level_at``.

    The quantile is at least ``LOWEST_QUANTILE``.
    """
    assert planning_level.quantile is not None
    if planning_level.factor > 1.0:
        return min(
            HIGHEST_LEVEL,
            TOP_QUANTILE
            + (planning_level.factor - 1.0) * (HIGHEST_LEVEL - TOP_QUANTILE) / (MAX_FACTOR - 1.0),
        )
    return planning_level.quantile


@dataclass(eq=False)
class LevelPlanner:
    """A forecast method, to plan and replay the window of a study at any forecast level.

    Forecasts are computed once and reused at every level.
    """

    study: Study
    method: str
    seed: int
    groups: tuple[Group, ...]
    rolled: tuple[tuple[int, RolledForecast], ...]  # forecasts, each with the index of its group
    _planned: dict[PlanningLevels, PlannedWindow] = field(default_factory=dict, init=False)

    @classmethod
    def of(cls, study: Study, method: str, seed: int, progress: Progress) -> LevelPlanner:
        """Forecast all series by ``method``; raise SeriesTooShort if it needs more history."""
        inputs = study.plan_input
        groups = groups_of(inputs.hardware, one_per_tier=inputs.settings.plans_tiers_separately)
        series = [
            (group_index, demand)
            for group_index, group in enumerate(groups)
            for _, demand in series_of(inputs.traffic, group)
        ]
        at_once, rolled = inputs.plans_all_at_once, []
        for i, (group_index, demand) in enumerate(series):
            progress(i / len(series), f"Forecasting with {method}: {demand.key.model}")
            forecast = roll_forecast(demand, inputs.window, method, at_once=at_once)
            rolled.append((group_index, forecast))
        return cls(study, method, seed, groups, tuple(rolled))

    @property
    def inputs(self) -> PlanInput:
        """Return the inputs of the study's plan."""
        return self.study.plan_input

    @property
    def target(self) -> float:
        """Return the highest SLO attainment target of a group of tiers."""
        return max(group.target for group in self.groups)

    @property
    def perfect(self) -> bool:
        """Return whether the forecast is the actual demand (oracle)."""
        return self.method == PERFECT

    def planning_levels(self, level: float) -> PlanningLevels:
        """Return what to plan for at a forecast level, the same for each group of tiers."""
        return (planning_level_at(level, perfect=self.perfect),) * len(self.groups)

    def forecasts(self, planning_levels: PlanningLevels) -> tuple[SeriesForecast, ...]:
        """Return the forecasts of all series, each at the level of its group of tiers."""
        return tuple(
            rolled.at_level(planning_levels[group_index]) for group_index, rolled in self.rolled
        )

    def chosen_quantiles(self, progress: Progress) -> tuple[PlannedQuantile, ...]:
        """Return the quantile of each group of tiers that is chosen on past periods.

        Quantiles that the scenario states are ignored.
        """
        section = self.inputs.settings.forecast.model_copy(
            update={"method": self.method, "quantile": None, "quantiles": {}}
        )
        quantiles = replace(quantiles_of(self.inputs), forecast=section)
        return quantiles.planned_quantiles(at_once=self.inputs.plans_all_at_once, progress=progress)

    def plan_at(self, planning_levels: PlanningLevels, progress: Progress) -> PlannedWindow:
        """Return the plan for the forecasts at ``planning_levels``, computed once.

        Raises Infeasible if the demand is too high.
        """
        if planning_levels not in self._planned:
            forecasts = self.forecasts(planning_levels)
            load = load_of(self.inputs, forecasts)
            plan = plan_load(self.inputs, load, progress)
            self._planned[planning_levels] = PlannedWindow(plan, forecasts, load)
        return self._planned[planning_levels]

    def replay_at(self, planning_levels: PlanningLevels, progress: Progress) -> PolicyRun:
        """Replay the plan for the forecasts at ``planning_levels``. May raise Infeasible."""
        planned = self.plan_at(planning_levels, part(progress, 0.0, 0.3))
        return run_policy(
            self.study, policy_of("lt-i"), seed=self.seed, progress=part(progress, 0.3, 1.0),
            shared=SharedInputs(planned),
        )  # fmt: skip

    def past(self) -> list[PastPeriods]:
        """Return the actual demand of each series, and the planned peak at ``COVERAGE_LEVELS``."""
        levels = [planning_level_at(level, perfect=self.perfect) for level in COVERAGE_LEVELS]
        past = []
        for _, rolled in self.rolled:
            per_period = rolled.window.bins_per_period
            planned = np.stack([rolled.planned_demand(level) for level in levels])  # [level, bin]
            # A plan has capacity for the largest bin of each period.
            planned_peaks = planned.reshape(len(levels), -1, per_period).max(axis=2)
            past.append(PastPeriods(planned_peaks, rolled.actual.reshape(-1, per_period)))
        return past

    def level_covering(self, share: float) -> float:
        """Return the lowest forecast level whose plans cover ``share`` of the actual demand.

        That demand is known only afterwards (oracle). If no level does, return the highest.
        """
        covered = share_covered(self.past())
        index = int(np.searchsorted(covered, share))  # of the first level that covers enough
        return float(COVERAGE_LEVELS[min(index, len(COVERAGE_LEVELS) - 1)])


def figures_of(study: Study, run: PolicyRun) -> Figures:
    """Return the figures of a replay of the window."""
    summary = run.summary
    replicas = np.rint(run.series.ready + run.series.starting)
    stopped = np.maximum(0, -np.diff(replicas, axis=1))  # decreases from interval to interval
    return Figures(
        spare=smallest_margin(study, summary),
        cost_usd=summary.cost_usd,
        gpu_hours=summary.gpu_hours,
        starts=float(sum(summary.starts.values())),
        stops=float(stopped.sum()),
        attainment=summary.slo_attainment,
    )


def smallest_margin(study: Study, summary: Summary) -> float:
    """Return the smallest attainment minus target of an interactive tier; 0 without requests."""
    targets = {tier.name: tier.attainment for tier in study.hardware.tiers if not tier.deferrable}
    margins = [
        share - targets[name]
        for name, share in summary.slo_attainment.items()
        if share is not None and name in targets
    ]
    return min(margins, default=0.0)
