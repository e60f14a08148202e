"""Price one more GPU, millisecond of SLO or point of quantile for a plan."""

from dataclasses import dataclass, field, replace
from operator import attrgetter
from statistics import NormalDist
from typing import Any

import numpy as np
import scipy

from planner.domain.columns import NUMBER, TEXT, Column, Columns
from planner.domain.planning.inputs import PlanInput, PlannedWindow
from planner.domain.planning.program import problem
from planner.domain.progress import Progress
from planner.domain.serialise import COLUMNS
from planner.domain.sizing.closed_form import size_factors
from planner.inputs.scenario.build import Hardware
from planner.optimizer import solve_window
from planner.optimizer.marginal_values import MarginalValue, Move, capacity_values, solve_moved
from planner.optimizer.problem import FEASIBLE, OPTIMAL, PlanningProblem, SolverOptions, WindowPlan
from simulation.fleet import Tier

LOOSENED_SHARE = 0.1  # share of a limit by which it is loosened to price a millisecond
QUANTILE_POINT = 0.01  # one point of quantile
RESOLVE_S = 5.0  # time limit of each solve
# Standard deviations between the 10% and the 90% quantile.
DEVIATIONS_P10_TO_P90 = 2 * NormalDist().inv_cdf(0.9)
RE_SOLVED = "planned again with the limit changed"
ESTIMATED = "planned again with capacities estimated by closed forms"
LIMITS = {"ttft_s": "TTFT", "tbt_s": "TPOT"}


WORTH = Columns(
    (
        Column("family", TEXT, "kind of limit"),
        Column("what", TEXT, "limit that moves"),
        Column("step", NUMBER, "size of the change"),
        Column("unit", TEXT, "unit of the step"),
        Column("saves", NUMBER, "saved per hour in the objective"),
        Column("doubt", NUMBER, "half the width within which that is proven"),
        Column("per_unit", NUMBER, "saved per unit of the step",
               lambda row: None if row.saves is None else row.saves / row.step),
        Column("relaxation", NUMBER, "saving by the linear relaxation", attrgetter("relaxed")),
        Column("basis", TEXT, "how it was found",
               lambda row: ESTIMATED if row.family == "slo" else RE_SOLVED),
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class MarginalValues:
    """What changing each limit saves in the most expensive period, per hour.

    ``objective_per_hour`` is that period's objective without a change, in ``unit``. ``period`` is
    the start of the period in epoch seconds.
    """

    period: float
    unit: str
    objective_per_hour: float
    rows: tuple[MarginalValue, ...] = field(metadata={COLUMNS: WORTH})


@dataclass(frozen=True, slots=True, eq=False)
class _ExpensivePeriod:
    """The period with the highest objective, planned alone from the fleet before it."""

    period: int
    problem: PlanningProblem
    plan: WindowPlan
    options: SolverOptions

    def value_of(self, changed: PlanningProblem, move: Move) -> MarginalValue | None:
        """Return what the period saves with the problem ``changed`` by ``move``."""
        return solve_moved(changed, self.plan, move, options=self.options, before=self.problem)


def marginal_values(
    inputs: PlanInput, planned_window: PlannedWindow, progress: Progress
) -> MarginalValues | None:
    """Return how much the plan's most expensive period saves if one limit at a time is changed.

    The limits are exhausted GPU capacity, the TTFT and TBT of all interactive tiers, and the
    forecast quantile. None if that period alone has no plan, or if the setting ``reroute``
    limits cross-region traffic.
    """
    settings = inputs.settings
    if settings.reroute is not None:
        return None  # a period planned alone here would ignore the rerouting limits
    expensive = _plan_most_expensive_period(inputs, planned_window)
    if expensive is None:
        return None
    progress(0.1, "Value of more GPUs")
    values = [
        *capacity_values(expensive.problem, expensive.plan, options=expensive.options),
        *(_value_of_looser_limit(inputs, expensive, name) for name in LIMITS),
        _value_of_higher_quantile(inputs, planned_window, expensive),
    ]
    return MarginalValues(
        period=float(planned_window.plan.period_start_s[expensive.period]),
        unit=settings.unit,
        objective_per_hour=expensive.plan.objective_usd,
        rows=tuple(value for value in values if value is not None),
    )


def _plan_most_expensive_period(
    inputs: PlanInput, planned_window: PlannedWindow
) -> _ExpensivePeriod | None:
    """Plan the period with the highest objective by itself; return None if it has no plan."""
    plan, settings = planned_window.plan, inputs.settings
    period = int(np.argmax([window.objective_usd for window in plan.windows]))
    current = plan.initial if period == 0 else plan.windows[period - 1].target
    window = problem(
        replace(inputs.at_period(period), current=current),
        planned_window.load.tps[period],
        plan.period_s,
        float(plan.period_start_s[period]),
    )
    options = settings.solver_options
    options["time_limit_s"] = min(RESOLVE_S, options["time_limit_s"])
    period_plan = solve_window(window, **options)
    if period_plan.status not in (OPTIMAL, FEASIBLE):
        return None
    return _ExpensivePeriod(period, window, period_plan, options)


def _value_of_looser_limit(
    inputs: PlanInput, expensive: _ExpensivePeriod, field: str
) -> MarginalValue | None:
    """Return what the ``expensive`` period saves with a latency limit that is 10% looser.

    ``field`` names the limit, one of LIMITS, which is changed in all interactive tiers. None if no
    tier has it. GPU columns that only the looser limit would make usable do not count.
    """
    stated = [getattr(tier, field) for tier in inputs.hardware.tiers if not tier.deferrable]
    limits = [seconds for seconds in stated if seconds is not None]
    if not limits:
        return None
    hardware, traffic = with_looser_limits(inputs.hardware, field), inputs.traffic
    factors = size_factors(inputs.hardware, hardware, inputs.sizes, traffic.lengths, traffic.shared)
    # A looser limit never lowers a capacity, so a factor below 1 is an error of closed forms.
    sizes = inputs.at_period(expensive.period).sizes.scaled(np.maximum(factors, 1.0))
    step_ms = 1000 * LOOSENED_SHARE * min(limits)
    words = (
        f"All {LIMITS[field]} limits {LOOSENED_SHARE:.0%} looser (strictest: +{step_ms:,.0f} ms)"
    )
    faster = replace(expensive.problem, theta_tps=sizes.theta_tps, pool_tps=sizes.pool_tps)
    return expensive.value_of(faster, Move("slo", words, step_ms, "ms"))


def with_looser_limits(hardware: Hardware, field: str) -> Hardware:
    """Return the hardware with the limit ``field``, one of LIMITS, 10% looser.

    It changes in all interactive tiers that have the limit.
    """

    def looser(tier: Tier) -> Tier:
        seconds = getattr(tier, field)
        if tier.deferrable or seconds is None:
            return tier
        longer: dict[str, Any] = {field: seconds * (1 + LOOSENED_SHARE)}
        return replace(tier, **longer)

    return replace(hardware, tiers=tuple(looser(tier) for tier in hardware.tiers))


def _value_of_higher_quantile(
    inputs: PlanInput, planned_window: PlannedWindow, expensive: _ExpensivePeriod
) -> MarginalValue | None:
    """Return what the ``expensive`` period costs more at a forecast quantile one point higher.

    Forecast errors are assumed to be normal, with the standard deviation that the 10% and 90%
    quantiles imply. None if the quantile would reach 1, or the demand would not change.
    """
    extra_tps = np.zeros_like(expensive.problem.demand_tps)
    for forecast in planned_window.forecasts:
        planned = forecast.planning_level
        quantile = 0.5 if planned.quantile is None else planned.quantile
        if quantile + QUANTILE_POINT >= 1:
            return None
        # Standard deviation of the demand to plan for, in each bin.
        width = np.maximum(0.0, forecast.high - forecast.low)
        deviation = planned.factor * width / DEVIATIONS_P10_TO_P90
        # ``ndtri`` is the quantile function of the standard normal distribution.
        rise = (
            scipy.special.ndtri(quantile + QUANTILE_POINT) - scipy.special.ndtri(quantile)
        ) * deviation
        by_period = rise.reshape(len(planned_window.load.tps), -1) / inputs.window.bin_s
        extra_tps[inputs.traffic.model_and_region(forecast.key)] += by_period[expensive.period]
    if not extra_tps.any():
        return None
    more = replace(expensive.problem, demand_tps=expensive.problem.demand_tps + extra_tps)
    words = "Forecast percentile 1 point higher (normal errors assumed)"
    return expensive.value_of(more, Move("quantile", words, 1.0, "point"))
