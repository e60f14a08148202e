"""Results of a backtest of decisions: forecasters, policies to compare with, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from forecasting.backtest import coverage, peak_wape, wape
from planner.domain.forecaster_backtest.equal_attainment import (
    Figures,
    Matched,
)
from planner.domain.forecaster_backtest.oracle import Hindsight
from planner.domain.forecaster_backtest.replay import (
    PERFECT,
    height_at,
)
from planner.domain.serialise import as_json
from planner.domain.traffic.forecast_percentile import PlannedQuantile
from planner.domain.traffic.forecasts import SeriesForecast

AS_MUCH = 0.005  # smaller cost differences count as equal: they round to 0%
SAME_AS_NOW: Literal["last-value"] = "last-value"


@dataclass(frozen=True, slots=True)
class Forecaster:
    """Row of one forecaster.

    ``as_run`` uses the quantile that the days before chose. ``equal`` uses the level at which the
    window just attains its target (oracle). None: there was no such plan.
    """

    method: str
    order: str
    wape: float | None
    peak_wape: float | None
    bias: float | None  # excess of the mean forecast, as a share of demand
    coverage80: float | None
    quantile: tuple[PlannedQuantile, ...]
    as_run: Figures | None
    equal: Matched | None
    confirmed: Figures | None  # by replay: cheapest and last value, if matched by coverage
    hindsight: Hindsight | None
    fit_seconds: float

    @property
    def usd(self) -> float | None:
        """Return the cost at equal attainment, or the lowest cost that attains more.

        None: no level attains the target.
        """
        matched = self.equal
        if matched is None or not (matched.equal or matched.figures.spare >= 0):
            return None
        return matched.figures.cost_usd

    @property
    def at(self) -> str:
        """Return the planned level at equal attainment, in words."""
        if self.equal is None:
            return ""
        perfect = self.method == PERFECT
        return " and ".join(str(height_at(knob, perfect=perfect)) for knob in self.equal.at)


@dataclass(frozen=True, slots=True)
class Beside:
    """Row of a policy without a forecast. ``word`` names any use of future data."""

    name: str
    label: str
    word: str
    figures: Figures
    meets: bool
    value: float | None = None  # of the parameter, if it was tuned
    instances: int | None = None  # of a static fleet


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecasterFigures:
    """Figures of a forecaster: at equal attainment, then with the percentile chosen before."""

    method: str
    order: str
    cost_usd: float | None
    gpu_hours: float | None
    starts: float | None
    stops: float | None
    attainment: dict[str, float | None] | None  # by tier
    spare: float | None  # attainment above the target
    equal: bool  # whether it attains the target within 0.1 points
    at: str  # what of the forecast is planned for
    replays: int
    quantile: tuple[PlannedQuantile, ...]
    as_run: Figures | None
    as_run_cost_usd: float | None
    as_run_spare: float | None
    confirmed: Figures | None  # of a replay, where matching had none
    plan_usd: float | None  # charged by the objective
    hindsight_usd: float | None  # least cost that serves as much (oracle)
    hindsight_bound_usd: float | None
    regret: float | None  # excess of the plan over the oracle
    served: float | None  # share of actual demand within the plan's capacity
    wape: float | None
    peak_wape: float | None
    bias: float | None
    coverage80: float | None
    fit_seconds: float

    @classmethod
    def of(cls, row: Forecaster) -> ForecasterFigures:
        """Return the figures of a forecaster."""
        matched, as_run, oracle = row.equal, row.as_run, row.hindsight
        equal = matched.figures if matched else None
        return cls(
            method=row.method,
            order=row.order,
            cost_usd=equal.cost_usd if equal else None,
            gpu_hours=equal.gpu_hours if equal else None,
            starts=equal.starts if equal else None,
            stops=equal.stops if equal else None,
            attainment=equal.attainment if equal else None,
            spare=equal.spare if equal else None,
            equal=matched is not None and matched.equal,
            at=row.at,
            replays=matched.replays if matched else 0,
            quantile=row.quantile,
            as_run=as_run,
            as_run_cost_usd=as_run.cost_usd if as_run else None,
            as_run_spare=as_run.spare if as_run else None,
            confirmed=row.confirmed,
            plan_usd=oracle.plan_usd if oracle else None,
            hindsight_usd=oracle.least_usd if oracle else None,
            hindsight_bound_usd=oracle.bound_usd if oracle else None,
            regret=oracle.regret if oracle else None,
            served=oracle.served if oracle else None,
            wape=row.wape,
            peak_wape=row.peak_wape,
            bias=row.bias,
            coverage80=row.coverage80,
            fit_seconds=row.fit_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineFigures:
    """Figures of a policy without a forecast; ``word`` names any use of future data."""

    name: str
    label: str
    word: str
    cost_usd: float
    gpu_hours: float
    starts: float
    stops: float
    attainment: dict[str, float | None]
    spare: float
    meets: bool
    value: float | None  # tuned parameter
    instances: int | None  # of a static fleet

    @classmethod
    def of(cls, row: Beside) -> BaselineFigures:
        """Return the figures of a policy."""
        figures = row.figures
        return cls(
            name=row.name,
            label=row.label,
            word=row.word,
            cost_usd=figures.cost_usd,
            gpu_hours=figures.gpu_hours,
            starts=figures.starts,
            stops=figures.stops,
            attainment=figures.attainment,
            spare=figures.spare,
            meets=row.meets,
            value=row.value,
            instances=row.instances,
        )


NESTED = ("order", "attainment", "quantile", "as_run", "confirmed")  # not in flat tables


def flat_table(rows: Sequence[ForecasterFigures] | Sequence[BaselineFigures]) -> pl.DataFrame:
    """Return rows as a table of single values."""
    flat = [{k: v for k, v in as_json(row).items() if k not in NESTED} for row in rows]
    return pl.DataFrame(flat, infer_schema_length=None)


def errors_of(forecasts: Sequence[SeriesForecast], per_period: int) -> dict[str, float | None]:
    """Return the forecast errors over all series; None: no bin was observed."""
    actual = np.concatenate([forecast.actual.reshape(-1, per_period) for forecast in forecasts])
    mean = np.concatenate([forecast.mean.reshape(-1, per_period) for forecast in forecasts])
    low = np.concatenate([forecast.low.reshape(-1, per_period) for forecast in forecasts])
    high = np.concatenate([forecast.high.reshape(-1, per_period) for forecast in forecasts])
    seen = ~np.isnan(actual)
    came = float(actual[seen].sum())
    errors = {
        "wape": wape(actual, mean),
        "peak_wape": peak_wape(actual, mean),
        "bias": float((mean - actual)[seen].sum()) / came if came > 0 else np.nan,
        "coverage80": coverage(actual, low, high),
    }
    return {name: float(value) if np.isfinite(value) else None for name, value in errors.items()}


def verdict(
    rows: Sequence[Forecaster], beside: Sequence[Beside], goals: Mapping[str, float]
) -> str:
    """Return a few sentences: the cheapest forecaster, and any cheaper policy without a forecast.

    The forecaster is compared with repeating the last value, the perfect forecast and the oracle.
    """
    known = {row.method: row.usd for row in rows}
    costs = {method: usd for method, usd in known.items() if usd is not None and method != PERFECT}
    if not costs:
        return "No forecaster could be brought to the attainment that is asked for."
    best = min(costs, key=lambda method: costs[method])
    usd = costs[best]
    sentences = [_against_now(best, costs, goals)]
    cheaper = [
        other for other in beside if other.meets and other.figures.cost_usd < usd * (1 - AS_MUCH)
    ]
    dearer = [other for other in beside if other.meets and other not in cheaper]
    if cheaper:
        nearest = min(cheaper, key=lambda it: it.figures.cost_usd)
        less = 1 - nearest.figures.cost_usd / usd
        sentences.append(
            f"{_beside(nearest)} is cheaper than any of them, by {less:.0%}{_word(nearest)}."
        )
    elif dearer:
        nearest = min(dearer, key=lambda it: it.figures.cost_usd)
        more = nearest.figures.cost_usd / usd - 1
        what = "as much" if more < AS_MUCH else f"{more:.0%} more"
        sentences.append(f"{_beside(nearest)} costs {what}{_word(nearest)}.")
    perfect = known.get(PERFECT)
    if perfect is not None:
        sentences.append(_against_perfect(1 - perfect / usd))
    sentences += _against_hindsight(next(row for row in rows if row.method == best))
    if any(row.usd is not None and row.equal is not None and not row.equal.equal for row in rows):
        sentences.append("Not all attain just that: whole instances allowed nothing nearer.")
    return " ".join(sentences)


def _against_perfect(less: float) -> str:
    """Compare with a plan on the actual demand, scaled to just attain the target.

    This is no lower bound on the cost: the best margin differs from period to period.
    """
    if less >= AS_MUCH:
        return f"Planned on what then came it would cost {less:.0%} less."
    if less <= -AS_MUCH:
        return (
            f"Planned on what then came, as many times as it takes, it would cost {-less:.0%} "
            "more: a nearer forecast alone saves nothing."
        )
    return "Planned on what then came it would cost as much: a nearer forecast alone saves nothing."


def _against_hindsight(row: Forecaster) -> list[str]:
    """Say how much the planning program could save with known demand, from both bounds."""
    hindsight = row.hindsight
    if hindsight is None or hindsight.plan_usd <= 0:
        return []
    least, most = (
        1 - usd / hindsight.plan_usd for usd in (hindsight.least_usd, hindsight.bound_usd)
    )
    if most < AS_MUCH:
        return ["Knowing all that came, its own program finds no cheaper plan that serves as much."]
    saved = f"{max(0.0, least):.0%}"
    upto = "" if most - least < AS_MUCH else f", and at most {most:.0%}"
    return [f"Knowing all that came, its own program serves as much for {saved}{upto} less."]


def _against_now(best: str, costs: Mapping[str, float], goals: Mapping[str, float]) -> str:
    """Compare the best forecaster with repeating the last value, in a sentence."""
    attained = ", ".join(f"{share:.1%} of {tier}" for tier, share in goals.items())
    slo = f"at equal SLO ({attained} in time)"
    now = costs.get(SAME_AS_NOW)
    if now is None:
        return f"{_named(best)} is the cheapest forecaster {slo}: ${costs[best]:,.2f}."
    saves = 1 - costs[best] / now
    if best == SAME_AS_NOW or saves < AS_MUCH:
        others = [method for method in costs if method != SAME_AS_NOW]
        if not others:
            return f"Repeating the last value costs ${now:,.2f} {slo}."
        return f"No forecaster pays for itself: none saves over repeating the last value {slo}."
    return f"{_named(best)} saves {saves:.0%} over last value {slo}."


def _named(method: str) -> str:
    return method.upper() if method == "arima" else method[:1].upper() + method[1:]


def _beside(row: Beside) -> str:
    if row.instances is not None:
        return f"A flat fleet of {row.instances:,}"
    return row.label


def _word(row: Beside) -> str:
    return f" ({row.word})" if row.word else ""
