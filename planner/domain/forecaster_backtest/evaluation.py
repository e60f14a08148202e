"""Evaluate one forecaster on a window: as it would have run, and at equal attainment.

A forecast level is a number from 0 to 1: the higher, the more demand is planned for (see
``replay.planning_level_at``). A planning level is what it stands for: a quantile of the forecast
times a factor.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from planner.domain.forecaster_backtest.equal_attainment import (
    EqualAttainment,
    Figures,
    match_attainment,
)
from planner.domain.forecaster_backtest.figures import (
    Baseline,
    Forecaster,
    ForecasterFacts,
    errors_of,
)
from planner.domain.forecaster_backtest.oracle import covered_share, oracle_cost
from planner.domain.forecaster_backtest.replay import (
    HIGHEST_LEVEL,
    LOWEST_LEVEL,
    LevelPlanner,
    PlanningLevels,
    figures_of,
    forecast_level_of,
    smallest_margin,
)
from planner.domain.progress import Progress, part
from planner.domain.recommend.trials import shortfall
from planner.domain.replay.replay import run_policy
from planner.domain.study import PolicyRun, Study
from planner.domain.traffic.forecast_percentile import PlannedQuantile
from planner.errors import Infeasible
from planner.policies.base import Policy
from planner.policies.choice import policy_of
from simulation.bisection import bisect_first

STATIC_FLEETS = {"flat-before": "", "flat-min": "oracle"}  # with a remark
TUNED_REMARK = "tuned on future data"
UNTUNED_REMARK = "not tuned"
TRIES_BY_COVERAGE = 14  # more than with replays: a plan alone is cheap
NEAR_TARGET = 0.01  # attainment this close to the target is a good start of the search


def evaluate_forecaster(
    level_planner: LevelPlanner, *, by_replay: bool, progress: Progress
) -> Forecaster:
    """Return the results of a forecaster: its errors, and its plans as run and at equal attainment.

    With ``by_replay``, attainment is measured by replays. Otherwise it is the share of demand that
    plans cover.
    """
    # First plan at the quantiles chosen on earlier days; a perfect forecast has none. Shares of
    # progress are rough shares of the run time.
    quantiles: tuple[PlannedQuantile, ...] = ()
    as_run = None
    if not level_planner.perfect:
        quantiles = level_planner.chosen_quantiles(part(progress, 0.0, 0.15))
        planning_levels = tuple(quantile.planning_level for quantile in quantiles)
        as_run = _figures_of_plan(
            level_planner, planning_levels, by_replay, part(progress, 0.15, 0.35)
        )
    equal = _level_of_equal_attainment(
        level_planner, quantiles, as_run, by_replay, part(progress, 0.35, 0.95)
    )
    at_median = level_planner.planning_levels(0.5)
    forecasts = level_planner.forecasts(at_median)  # for the errors
    facts = ForecasterFacts(
        method=level_planner.method,
        order="; ".join(dict.fromkeys(forecast.order for forecast in forecasts if forecast.order)),
        **errors_of(forecasts, level_planner.study.window.bins_per_period),
        quantile=quantiles,
        as_run=as_run,
        confirmed=None,
        fit_seconds=sum(forecast.fit_seconds for forecast in forecasts),
    )
    oracle = None
    if equal is not None:
        step = part(progress, 0.95, 1.0)
        # If two levels around the target were mixed, the last is the higher one.
        levels = level_planner.planning_levels(equal.at[-1])
        planned = level_planner.plan_at(levels, step)
        oracle = oracle_cost(level_planner, planned, step)
    return Forecaster(facts, equal, oracle)


def _level_of_equal_attainment(
    level_planner: LevelPlanner,
    quantiles: tuple[PlannedQuantile, ...],
    as_run: Figures | None,
    by_replay: bool,
    progress: Progress,
) -> EqualAttainment | None:
    """Return the forecast level (0 to 1) at which the forecaster's plan just meets the SLO target.

    None if no tried level has a feasible plan. With ``by_replay``, attainment is measured by
    replays, else by the share of demand that the plan covers. ``as_run`` are the figures at
    ``quantiles``, if they are known.
    """
    tried = 0

    def run(level: float) -> Figures | None:
        """Return the figures of the plan at a forecast level; None if it is infeasible."""
        nonlocal tried
        # The number of tries is not known: each takes a fifth of the remaining progress.
        step = part(progress, 1 - 0.8**tried, 1 - 0.8 ** (tried + 1))
        tried += 1
        return _figures_of_plan(
            level_planner, level_planner.planning_levels(level), by_replay, step
        )

    begin = level_planner.level_covering(level_planner.target)
    if not by_replay:
        return match_attainment(run, begin, LOWEST_LEVEL, HIGHEST_LEVEL, TRIES_BY_COVERAGE)
    is_near = as_run is not None and abs(as_run.spare) < NEAR_TARGET
    if is_near and len(quantiles) == 1:
        begin = forecast_level_of(quantiles[0].planning_level)
    return match_attainment(run, begin, LOWEST_LEVEL, HIGHEST_LEVEL)


def confirm_by_replay(
    level_planner: LevelPlanner, forecaster: Forecaster, progress: Progress
) -> Forecaster:
    """Return ``forecaster`` with the figures of a replay of its plan at equal coverage.

    That is the plan at the forecast level that covers just the target share of demand.
    """
    if forecaster.equal is None:
        return forecaster
    # If two levels around the target were mixed, the last is the higher one.
    level = forecaster.equal.at[-1]
    figures = _figures_of_plan(
        level_planner, level_planner.planning_levels(level), by_replay=True, progress=progress
    )
    return replace(forecaster, facts=replace(forecaster.facts, confirmed=figures))


def _figures_of_plan(
    level_planner: LevelPlanner,
    planning_levels: PlanningLevels,
    by_replay: bool,
    progress: Progress,
) -> Figures | None:
    """Return the figures of a plan, by a replay or by its coverage; None if it is infeasible.

    ``planning_levels`` are the quantiles and factors to plan for, by group of tiers.
    """
    try:
        if by_replay:
            return figures_of(
                level_planner.study, level_planner.replay_at(planning_levels, progress)
            )
        planned = level_planner.plan_at(planning_levels, progress)
    except Infeasible:
        return None
    hours = planned.plan.period_s / 3600
    hourly = [window.totals for window in planned.plan.windows]
    share = covered_share(level_planner, planned)
    tiers = [tier for group in level_planner.groups for tier in sorted(group.tiers)]
    return Figures(
        spare=share - level_planner.target,
        cost_usd=sum(totals.usd for totals in hourly) * hours,
        gpu_hours=sum(totals.gpu_hours for totals in hourly) * hours,
        starts=float(sum(totals.starts for totals in hourly)),
        stops=float(sum(totals.stops for totals in hourly)),
        attainment=dict.fromkeys(tiers, share),
    )


def baseline_names(reactive: str, *, tune: bool) -> list[str]:
    """Return the names of the policies to compare with: static fleets, and ``reactive``.

    The minimum static fleet is found by replays, so it is included only with ``tune``.
    """
    static_fleets = [name for name, remark in STATIC_FLEETS.items() if tune or not remark]
    return [*static_fleets, reactive]


def baseline_row(study: Study, name: str, seed: int, *, tune: bool, progress: Progress) -> Baseline:
    """Return the results of the policy ``name`` without a forecast, from a replay of the window.

    With ``tune``, the parameter of a reactive policy is tuned on the window itself, to the first of
    its values that meets the targets. Raises the errors of the replay.
    """
    policy, remark = policy_of(name), STATIC_FLEETS.get(name, UNTUNED_REMARK)
    value = None
    replay = partial(run_policy, study, seed=seed, progress=progress)
    is_static = name in STATIC_FLEETS
    if tune and not is_static and policy.parameter_to_tune is not None:
        value = _first_passing_value(study, policy, policy.parameter_to_tune.values, replay)
        policy, remark = policy.with_value(value), TUNED_REMARK
    run = replay(policy)
    return Baseline(
        name=name,
        label=policy.title,
        word=remark,
        figures=figures_of(study, run),
        meets=smallest_margin(study, run.summary) >= 0,
        value=value,
        instances=sum(pool.initial for pool in run.fleet.pools) if is_static else None,
    )


def _first_passing_value(
    study: Study, policy: Policy, values: Sequence[float], replay: Callable[[Policy], PolicyRun]
) -> float:
    """Return the first of ``values`` with which the policy meets all targets, or else the last."""
    goals = {tier.name: tier.attainment for tier in study.hardware.tiers}

    def passes(index: int) -> bool:
        """Return whether the policy meets all targets at a value of its parameter."""
        summary = replay(policy.with_value(values[index])).summary
        return not shortfall(summary.slo_attainment, goals)

    first_passing = bisect_first(passes, 0, len(values))  # len(values): none passes
    return values[min(first_passing, len(values) - 1)]
