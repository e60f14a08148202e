"""Define the results of a backtest: forecasters, policies to compare with, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import polars as pl

from forecasting.backtest import coverage, peak_wape, wape
from planner.domain.forecaster_backtest.equal_attainment import EqualAttainment, Figures
from planner.domain.forecaster_backtest.oracle import OracleCost
from planner.domain.forecaster_backtest.replay import PERFECT, planning_level_at
from planner.domain.serialise import MERGED, as_json, clean
from planner.domain.traffic.forecast_percentile import PlannedQuantile
from planner.domain.traffic.forecasts import SeriesForecast
from simulation.arrays import FloatArray

NEGLIGIBLE_DIFFERENCE = 0.005  # smaller cost differences count as equal: they round to 0%
SAME_AS_NOW: Literal["last-value"] = "last-value"  # forecast method that repeats the last value


@dataclass(frozen=True, slots=True)
class ForecasterFacts:
    """The forecast errors of a forecaster, and its plan at the percentile chosen beforehand."""

    method: str
    order: str  # of the fitted model, such as ARIMA's
    wape: float | None
    peak_wape: float | None
    bias: float | None  # excess of the mean forecast, as a share of demand
    coverage80: float | None
    quantile: tuple[PlannedQuantile, ...]
    as_run: Figures | None  # with the quantile that earlier days chose; None: no such plan
    confirmed: Figures | None  # by a replay, if equal coverage replaced equal attainment
    fit_seconds: float


@dataclass(frozen=True, slots=True)
class Forecaster:
    """The results of one forecaster.

    ``equal`` are those at the forecast level that just meets the target, found with future data
    (oracle); None: no level has a feasible plan. ``hindsight`` compares that plan with the cheapest
    one for the known demand.
    """

    facts: ForecasterFacts
    equal: EqualAttainment | None
    hindsight: OracleCost | None

    @property
    def usd(self) -> float | None:
        """Return the cost in dollars at equal attainment, or above the target if none is equal.

        None if no forecast level meets the target.
        """
        matched = self.equal
        if matched is None or (not matched.equal and matched.figures.spare < 0):
            return None
        return matched.figures.cost_usd

    @property
    def at(self) -> str:
        """Return what the plan at equal attainment plans for, such as "P90"; "" without one."""
        if self.equal is None:
            return ""
        perfect = self.facts.method == PERFECT
        words = " and ".join(
            str(planning_level_at(level, perfect=perfect)) for level in self.equal.at
        )
        return words if len(self.equal.at) == 1 else f"a mix over time of {words}"


@dataclass(frozen=True, slots=True)
class Baseline:
    """The result of a policy without a forecast; ``word`` is a remark, such as on future data."""

    name: str
    label: str
    word: str
    figures: Figures = field(metadata={MERGED: True})
    meets: bool
    value: float | None = None  # of the parameter, if it was tuned
    instances: int | None = None  # replicas of a static fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecasterFigures:
    """The stored figures of a forecaster: at equal attainment, and at the percentile chosen before.

    Those at equal attainment are None if no forecast level has a feasible plan.
    """

    facts: ForecasterFacts = field(metadata={MERGED: True})
    cost_usd: float | None = None
    gpu_hours: float | None = None
    starts: float | None = None
    stops: float | None = None
    attainment: dict[str, float | None] | None = None  # by tier
    spare: float | None = None  # attainment above the target
    equal: bool = False  # whether it attains the target within 0.1 points
    at: str  # planned percentile of the forecast
    replays: int = 0
    as_run_cost_usd: float | None = None
    as_run_spare: float | None = None
    plan_usd: float | None = None  # value of the program's objective
    hindsight_usd: float | None = None  # least objective that serves as much (oracle)
    hindsight_bound_usd: float | None = None  # proven lower bound of it
    regret: float | None = None  # excess of the plan over the oracle
    served: float | None = None  # share of actual demand within the plan's capacity

    @classmethod
    def of(cls, row: Forecaster) -> ForecasterFigures:
        """Return the results of a forecaster as stored figures."""
        stored = cls(facts=row.facts, at=row.at)
        if row.equal is not None:
            figures = row.equal.figures
            stored = replace(
                stored,
                cost_usd=figures.cost_usd,
                gpu_hours=figures.gpu_hours,
                starts=figures.starts,
                stops=figures.stops,
                attainment=figures.attainment,
                spare=figures.spare,
                equal=row.equal.equal,
                replays=row.equal.replays,
            )
        as_run = row.facts.as_run
        if as_run is not None:
            stored = replace(stored, as_run_cost_usd=as_run.cost_usd, as_run_spare=as_run.spare)
        oracle = row.hindsight
        if oracle is not None:
            stored = replace(
                stored,
                plan_usd=oracle.plan_usd,
                hindsight_usd=oracle.least_usd,
                hindsight_bound_usd=oracle.bound_usd,
                regret=oracle.regret,
                served=oracle.served,
            )
        return stored


NESTED = ("order", "attainment", "quantile", "as_run", "confirmed")  # not in flat tables


def flat_table(rows: Sequence[ForecasterFigures] | Sequence[Baseline]) -> pl.DataFrame:
    """Return the rows as a flat table, without values that are no plain numbers or texts."""
    documents = [as_json(row) for row in rows]
    for document in documents:
        for name in NESTED:
            document.pop(name, None)
    return pl.DataFrame(documents, infer_schema_length=None)


def errors_of(forecasts: Sequence[SeriesForecast], per_period: int) -> dict[str, float | None]:
    """Return the forecast errors over all series by name; None if no bin was observed.

    A period has ``per_period`` bins.
    """

    def by_period(name: str) -> FloatArray:
        """Return the values ``name`` of all series, ``[period of a series, bin]``."""
        return np.concatenate([getattr(row, name).reshape(-1, per_period) for row in forecasts])

    actual, mean = by_period("actual"), by_period("mean")
    observed = ~np.isnan(actual)
    demand = float(actual[observed].sum())
    errors = {
        "wape": wape(actual, mean),
        "peak_wape": peak_wape(actual, mean),
        "bias": float((mean - actual)[observed].sum()) / demand if demand > 0 else np.nan,
        "coverage80": coverage(actual, by_period("low"), by_period("high")),
    }
    return {name: clean(float(value)) for name, value in errors.items()}


def verdict(rows: Sequence[Forecaster], baselines: Sequence[Baseline]) -> str:
    """Return a sentence that names the cheapest forecaster at equal SLO attainment.

    It compares its cost with that of repeating the last value. It also names the cheapest policy
    without a forecast, if that is cheaper still.
    """
    costs = {
        row.facts.method: row.usd
        for row in rows
        if row.usd is not None and row.facts.method != PERFECT
    }
    if not costs:
        return "No forecaster reaches the SLO target"
    best = min(costs, key=lambda method: costs[method])
    comparison = _last_value_comparison(best, costs)
    meeting = [row for row in baselines if row.meets]
    if not meeting:
        return comparison
    cheapest = min(meeting, key=lambda row: row.figures.cost_usd)
    saving = 1 - cheapest.figures.cost_usd / costs[best]
    if saving < NEGLIGIBLE_DIFFERENCE:
        return comparison
    return f"{comparison}. {_baseline_words(cheapest)} costs {saving:.0%} less"


def _last_value_comparison(best: str, costs: Mapping[str, float]) -> str:
    """Return a sentence that compares the best forecaster's cost with repeating the last value."""
    last_value_usd = costs.get(SAME_AS_NOW)
    if last_value_usd is None:
        return f"{_method_words(best)} is the cheapest forecaster: ${costs[best]:,.2f}"
    saves = 1 - costs[best] / last_value_usd
    if best != SAME_AS_NOW and saves >= NEGLIGIBLE_DIFFERENCE:
        return f"Plans with forecaster “{best}” cost {saves:.0%} less than with the last value"
    if len(costs) == 1:
        return f"Forecast by {SAME_AS_NOW}: ${last_value_usd:,.2f}"
    return "No forecaster gives cheaper plans than the last value"


def _method_words(method: str) -> str:
    """Return the name of a forecast method for the begin of a sentence."""
    return method.upper() if method == "arima" else method[:1].upper() + method[1:]


def _baseline_words(row: Baseline) -> str:
    """Return the name of a policy without a forecast, with its remark."""
    name = row.label if row.instances is None else f"A static fleet of {row.instances:,}"
    return f"{name} ({row.word})" if row.word else name
