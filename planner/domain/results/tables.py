"""Convert typed values to tables, stored as Parquet, drawn as charts, downloaded as CSV."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from forecasting.demand import DemandSeries, SeriesKey
from planner.domain.planning.figures import decisions
from planner.domain.planning.inputs import PlannedWindow
from planner.domain.replicas import REPLICA
from planner.domain.results.figures import policies_table, tiers_table
from planner.domain.results.ranking import PolicyComparison
from planner.domain.serialise import times
from planner.domain.sizing.sizing import Sizes
from planner.domain.study import Study
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.forecasts import SeriesForecast
from planner.domain.traffic.past_forecasts import PastForecasts
from planner.inputs.scenario.build import Hardware
from planner.optimizer.pools import pool_capacity
from planner.optimizer.problem import ScalingPlan
from simulation.arrays import FloatArray

AMOUNTS = ("requests", "input_tokens", "output_tokens")


def demand_table(demand: Demand) -> pl.DataFrame:
    """Return a row for each bin and series with its requests and tokens."""
    when = times(demand.start_s, demand.bin_s, demand.bins)
    columns = {name: getattr(demand, name) for name in AMOUNTS}
    return _concatenate(
        _series(key, when, **{name: amounts[i] for name, amounts in columns.items()})
        for i, key in enumerate(demand.keys)
    )


def forecast_table(forecasts: Sequence[SeriesForecast]) -> pl.DataFrame:
    """Return forecasts in input tokens/s per bin of the window; no rows without a forecast."""
    shape: dict[str, pl.DataType] = {"time": pl.Datetime("us", "UTC")}
    shape |= dict.fromkeys(("model", "region", "tier"), pl.String())
    shape |= dict.fromkeys(("actual", "mean", "p10", "p90", "planned"), pl.Float64())
    frames = (
        _series(
            forecast.key,
            times(forecast.start_s, forecast.bin_s, len(forecast.mean)),
            actual=forecast.actual / forecast.bin_s,
            mean=forecast.mean / forecast.bin_s,
            p10=forecast.low / forecast.bin_s,
            p90=forecast.high / forecast.bin_s,
            planned=forecast.planned / forecast.bin_s,
        )
        for forecast in forecasts
    )
    return _concatenate((pl.DataFrame(schema=shape), *frames))


def looking_back_tables(series: Sequence[PastForecasts]) -> dict[str, pl.DataFrame]:
    """Return tables of forecasts from past moments ("moments") and of actual demand ("history").

    Amounts are in units per second. Without series, there are no tables.
    """
    if not series:
        return {}
    moments, history = [], []
    for past in series:
        steps = past.mean.shape[1]
        for i, origin in enumerate(past.origins_s.tolist()):
            when = times(origin, past.bin_s, steps)
            band = {"mean": past.mean[i], "p10": past.low[i], "p90": past.high[i]}
            rates = {name: amounts / past.bin_s for name, amounts in band.items()}
            moments.append(
                _series(past.key, when, unit=past.unit, **rates, origin=[when[0]] * steps)
            )
        when = times(past.history_s, past.bin_s, len(past.history))
        actual = past.history / past.bin_s
        history.append(_series(past.key, when, unit=past.unit, actual=actual))
    return {"moments": _concatenate(moments), "history": _concatenate(history)}


def series_table(
    rows: Sequence[tuple[DemandSeries, FloatArray, FloatArray, FloatArray]],
) -> pl.DataFrame:
    """Return history and forecast (mean, 10%, 90%) of each series, in its unit per bin."""
    frames = []
    for series, *band in rows:
        mean, low, high = (np.r_[np.full(series.bins, np.nan), amounts] for amounts in band)
        actual = np.r_[series.values, np.full(len(band[0]), np.nan)]
        when = times(series.start_s, series.bin_s, len(mean))
        frames.append(
            _series(series.key, when, unit=series.unit, actual=actual, mean=mean, p10=low, p90=high)
        )
    return _concatenate(frames)


def _series(key: SeriesKey, when: pl.Series, **columns: Any) -> pl.DataFrame:
    """Return a row for each time in ``when``, with the key of the series in the first columns."""
    return pl.DataFrame(
        {"time": when, "model": key.model, "region": key.region, "tier": key.tier, **columns}
    )


def _concatenate(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the frames concatenated, with gaps as null."""
    return pl.concat(frames).fill_nan(None)


def plan_table(plan: ScalingPlan, hardware: Hardware, sizes: Sizes) -> pl.DataFrame:
    """Return a table of a plan with one row per period and pool, with its GPUs.

    Each row also has the demand and the joint capacity of the model's replicas in the region.
    """
    capacity = pool_capacity(sizes.theta_tps, sizes.pool_tps, plan.target)  # [p, l, r, g]
    usd = [hardware.gpu_usd(start_s, plan.period_s) for start_s in plan.period_start_s]
    indices = [(p, *pool) for p in range(len(plan.windows)) for pool in hardware.pool_index]
    rows = [
        {
            "period_start": decision.period,
            "model": decision.replica.model,
            "region": decision.region,
            **{name: getattr(decision.replica, name) for name in REPLICA},
            "current": decision.current,
            "delta": decision.delta,
            "target": decision.target,
            "gpus": decision.target * decision.replica.tp,
            "usd_per_hour": decision.target * decision.replica.tp * float(usd[p][r, g]),
            "demand_tps": float(plan.demand_tps[p, m, r]),
            "capacity_tps": hardware.capacity_of_region(capacity[p, m, r]),
        }
        for decision, (p, m, r, g) in zip(decisions(plan, hardware), indices, strict=True)
    ]
    return pl.DataFrame(rows)


def capacity_table(comparison: PolicyComparison) -> pl.DataFrame:
    """Return the capacity of each model's serving replicas by region, under every policy."""
    parts = [(run.name, run.detail.capacity) for run in comparison.runs]
    return _by_policy([(name, table) for name, table in parts if table is not None])


def groups_table(comparison: PolicyComparison) -> pl.DataFrame:
    """Return the results by tier, model and home region, under every policy."""
    return _by_policy([(run.name, run.detail.groups) for run in comparison.runs])


def _by_policy(tables: Sequence[tuple[str, pl.DataFrame]]) -> pl.DataFrame:
    """Return (policy, table) pairs as one table, with the policy as first column."""
    return pl.concat(
        table.select(pl.lit(policy).alias("policy"), pl.all()) for policy, table in tables
    )


def planned_tables(study: Study, planned_window: PlannedWindow) -> dict[str, pl.DataFrame]:
    """Return the tables of a plan by name."""
    return {
        "demand": demand_table(study.traffic.demand),
        "forecast": forecast_table(planned_window.forecasts),
        "plan": plan_table(planned_window.plan, study.hardware, study.sizes),
    }


def replayed_tables(comparison: PolicyComparison) -> dict[str, pl.DataFrame]:
    """Return the tables of all simulated policies by name."""
    return {
        "replicas": _by_policy([(run.name, run.detail.minutes) for run in comparison.runs]),
        "capacity": capacity_table(comparison),
        "policies": policies_table(comparison.runs),
        "tiers": tiers_table(comparison.runs),
        "groups": groups_table(comparison),
        **_modules(comparison),
    }


def _modules(comparison: PolicyComparison) -> dict[str, pl.DataFrame]:
    """Return tables of the placement of modules and of their operations, if policies move them."""
    rows: dict[str, list[tuple[str, pl.DataFrame]]] = {}
    for run in comparison.runs:
        if run.modules is not None:
            tables = {"modules": run.modules.standings, "module_operations": run.modules.operations}
            for name, table in tables.items():
                if not table.is_empty():
                    rows.setdefault(name, []).append((run.name, table))
    return {name: _by_policy(tables) for name, tables in rows.items()}
