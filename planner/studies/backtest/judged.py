"""One forecaster judged on a window: as the days before would have it run, and at equal
attainment."""

from __future__ import annotations

from planner.errors import Infeasible
from planner.studies.backtest.driver import HIGH, LOW, Driver, Heights, figures_of, knob_of
from planner.studies.backtest.figures import Forecaster, errors_of
from planner.studies.backtest.hindsight import Hindsight, covered, hindsight
from planner.studies.backtest.matching import Figures, Matched, matched
from planner.studies.planning.inputs import Planned
from planner.studies.progress import Progress, part
from planner.studies.traffic.quantile import PlannedQuantile
from planner.studies.values import Study

ALL_OF_THEM, ONE, NONE = "all", "one", "none"  # of what was tried is replayed
TRIES_BY_COVERAGE = 14  # a plan is cheap where nothing is replayed


def judged(study: Study, method: str, seed: int, replays: str, progress: Progress) -> Forecaster:
    """Raises ForecastError where the method cannot be fitted on what came before the window."""
    driver = Driver.of(study, method, seed, part(progress, 0.0, 0.1))
    quantiles: tuple[PlannedQuantile, ...] = ()
    as_run = None
    if not driver.perfect:
        quantiles = driver.chosen(part(progress, 0.1, 0.2))
        heights = tuple(one.height for one in quantiles)
        as_run = _figures(driver, heights, replays != NONE, part(progress, 0.2, 0.35))
    equal = _equal(driver, quantiles, as_run, replays, part(progress, 0.35, 0.9))
    confirmed = None
    if replays == ONE and equal is not None:
        at = driver.heights(equal.at[-1])
        confirmed = _figures(driver, at, True, part(progress, 0.9, 0.95))
    forecasts = driver.forecasts(driver.heights(0.5))
    return Forecaster(
        method=method,
        order="; ".join(dict.fromkeys(one.order for one in forecasts if one.order)),
        **errors_of(forecasts, study.window.bins_per_period),
        quantile=quantiles,
        as_run=as_run,
        equal=equal,
        confirmed=confirmed,
        hindsight=_least(driver, equal, part(progress, 0.95, 1.0)),
        fit_seconds=sum(one.fit_seconds for one in forecasts),
    )


def _equal(
    driver: Driver,
    quantiles: tuple[PlannedQuantile, ...],
    as_run: Figures | None,
    replays: str,
    progress: Progress,
) -> Matched | None:
    by_replay = replays == ALL_OF_THEM
    tried = 0

    def run(knob: float) -> Figures | None:
        nonlocal tried
        tried += 1
        heights = driver.heights(knob)
        return _figures(driver, heights, by_replay, part(progress, 1 - 0.8**tried, 1.0))

    wanted = max(group.wanted for group in driver.groups)
    begin = driver.covering(wanted)
    if by_replay and as_run is not None and len(quantiles) == 1 and abs(as_run.spare) < 0.01:
        begin = knob_of(quantiles[0].height)  # near already
    if by_replay:
        return matched(run, begin, LOW, HIGH)
    return matched(run, begin, LOW, HIGH, TRIES_BY_COVERAGE)


def _figures(
    driver: Driver, heights: Heights, by_replay: bool, progress: Progress
) -> Figures | None:
    """Of a replay or of the plan; None where there is no plan for so much."""
    try:
        planned = driver.planned(heights, progress)
        if not by_replay:
            return planned_figures(driver, planned)
        return figures_of(driver.study, driver.replayed(heights, progress))
    except Infeasible:
        return None


def planned_figures(driver: Driver, planned: Planned) -> Figures:
    """As the plan has them; attained is what it covers."""
    plan = planned.plan
    hours = plan.period_s / 3600
    taken = [window.totals for window in plan.windows]
    share = covered(driver, planned)
    return Figures(
        spare=share - max(group.wanted for group in driver.groups),
        cost_usd=sum(one.usd for one in taken) * hours,
        gpu_hours=sum(one.gpu_hours for one in taken) * hours,
        starts=float(sum(one.starts for one in taken)),
        stops=float(sum(one.stops for one in taken)),
        attainment={tier: share for group in driver.groups for tier in sorted(group.tiers)},
    )


def _least(driver: Driver, equal: Matched | None, progress: Progress) -> Hindsight | None:
    if equal is None:
        return None
    return hindsight(driver, driver.planned(driver.heights(equal.at[-1]), progress), progress)
