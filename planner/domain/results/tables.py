"""Convert figures over time to tables, which are stored, drawn as charts and downloaded.

Amounts are numbers of requests or tokens. A series is the demand of one model, region and tier.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
import polars as pl

from forecasting.demand import DemandSeries, SeriesKey
from planner.domain.planning.figures import decisions
from planner.domain.planning.inputs import PlannedWindow
from planner.domain.replicas import REPLICA
from planner.domain.results.figures import POLICIES, tiers_table
from planner.domain.results.ranking import PolicyComparison
from planner.domain.serialise import times
from planner.domain.sizing.sizing import Sizes
from planner.domain.study import PolicyRun, Study
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.forecasts import SeriesForecast
from planner.domain.traffic.past_forecasts import PastForecasts
from planner.inputs.scenario.build import Hardware
from planner.optimizer.pools import pool_capacity
from planner.optimizer.problem import ScalingPlan
from simulation.arrays import FloatArray

AMOUNTS = ("requests", "input_tokens", "output_tokens")


def demand_table(demand: Demand) -> pl.DataFrame:
    """Return a table of demand, with a row per series and bin: requests and tokens."""
    bin_starts = times(demand.start_s, demand.bin_s, demand.bins)
    series = []
    for i, key in enumerate(demand.keys):
        amounts = {name: getattr(demand, name)[i] for name in AMOUNTS}
        series.append(_series(key, bin_starts, **amounts))
    return _concatenate(series)


def forecast_table(forecasts: Sequence[SeriesForecast]) -> pl.DataFrame:
    """Return a table of forecasts in input tokens/s, with a row per series and bin of the window.

    It has its columns even without forecasts.
    """
    schema: dict[str, pl.DataType] = {"time": pl.Datetime("us", "UTC")}
    schema |= dict.fromkeys(("model", "region", "tier"), pl.String())
    schema |= dict.fromkeys(("actual", "mean", "p10", "p90", "planned"), pl.Float64())
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
    return _concatenate((pl.DataFrame(schema=schema), *frames))


def looking_back_tables(series: Sequence[PastForecasts]) -> dict[str, pl.DataFrame]:
    """Return tables of forecasts made at past moments ("moments") and of demand ("history").

    Amounts are per second, in the unit of each series. Return {} without series.
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
            made_at = [when[0]] * steps
            moments.append(_series(past.key, when, unit=past.unit, **rates, origin=made_at))
        when = times(past.history_s, past.bin_s, len(past.history))
        actual = past.history / past.bin_s
        history.append(_series(past.key, when, unit=past.unit, actual=actual))
    return {"moments": _concatenate(moments), "history": _concatenate(history)}


def series_table(
    rows: Sequence[tuple[DemandSeries, FloatArray, FloatArray, FloatArray]],
) -> pl.DataFrame:
    """Return a table with the history and the forecast of each series, in its unit per bin.

    ``rows`` are (history, forecast mean, 10th percentile, 90th percentile).
    """
    frames = []
    for series, mean, low, high in rows:
        # The forecast begins where the history ends. NaN fills the other part of each column.
        before, after = np.full(series.bins, np.nan), np.full(len(mean), np.nan)
        columns = {
            "actual": np.concatenate([series.values, after]),
            "mean": np.concatenate([before, mean]),
            "p10": np.concatenate([before, low]),
            "p90": np.concatenate([before, high]),
        }
        bin_starts = times(series.start_s, series.bin_s, series.bins + len(mean))
        frames.append(_series(series.key, bin_starts, unit=series.unit, **columns))
    return _concatenate(frames)


def _series(key: SeriesKey, when: pl.Series, **columns: Any) -> pl.DataFrame:
    """Return a table with a row per time, and the model, region and tier of the series."""
    return pl.DataFrame(
        {"time": when, "model": key.model, "region": key.region, "tier": key.tier, **columns}
    )


def _concatenate(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return the tables as one, with null for NaN."""
    return pl.concat(frames).fill_nan(None)


def plan_table(plan: ScalingPlan, hardware: Hardware, sizes: Sizes) -> pl.DataFrame:
    """Return a table of a plan, with a row per period and pool: replicas, GPUs and cost.

    Each row also has the demand of its model in its region, and the capacity of all its pools
    there.
    """
    # [period, model, region, GPU column]
    capacity_tps = pool_capacity(sizes.theta_tps, sizes.pool_tps, plan.target)
    usd = [hardware.gpu_usd(start_s, plan.period_s) for start_s in plan.period_start_s]
    periods_and_pools = product(range(len(plan.windows)), hardware.model_region_gpu)
    rows = []
    for decision, (p, (m, r, g)) in zip(decisions(plan, hardware), periods_and_pools, strict=True):
        replica, gpus = decision.replica, decision.target * decision.replica.tp
        row = {
            "period_start": decision.period,
            "model": replica.model,
            "region": decision.region,
            **{name: getattr(replica, name) for name in REPLICA},
            "current": decision.current,
            "delta": decision.delta,
            "target": decision.target,
            "gpus": gpus,
            "usd_per_hour": gpus * float(usd[p][r, g]),
            "demand_tps": float(plan.demand_tps[p, m, r]),
            "capacity_tps": hardware.capacity_of_region(capacity_tps[p, m, r]),
        }
        rows.append(row)
    return pl.DataFrame(rows)


def _by_policy(tables: Iterable[tuple[str, pl.DataFrame]]) -> pl.DataFrame:
    """Return (policy, table) pairs as one table, with the policy as its first column."""
    return pl.concat(table.select(pl.lit(name).alias("policy"), pl.all()) for name, table in tables)


def planned_tables(study: Study, planned_window: PlannedWindow) -> dict[str, pl.DataFrame]:
    """Return the tables of a plan by name: demand, forecast and plan."""
    return {
        "demand": demand_table(study.traffic.demand),
        "forecast": forecast_table(planned_window.forecasts),
        "plan": plan_table(planned_window.plan, study.hardware, study.sizes),
    }


def replayed_tables(comparison: PolicyComparison) -> dict[str, pl.DataFrame]:
    """Return the tables of all simulated policies by name.

    "capacity" has that of the serving replicas by model and region, and "groups" the results by
    tier, model and home region.
    """
    runs = comparison.runs
    return {
        "replicas": _by_policy((run.name, run.detail.minutes) for run in runs),
        "capacity": _by_policy(
            (run.name, run.detail.capacity) for run in runs if run.detail.capacity is not None
        ),
        "policies": POLICIES.table(runs),
        "tiers": tiers_table(runs),
        "groups": _by_policy((run.name, run.detail.groups) for run in runs),
        **_modules(runs),
    }


def _modules(runs: Sequence[PolicyRun]) -> dict[str, pl.DataFrame]:
    """Return the tables of placements and operations of modules, of policies that move them.

    A table that would be empty is left out.
    """
    by_name: dict[str, list[tuple[str, pl.DataFrame]]] = {}
    for run in runs:
        if run.modules is not None:
            tables = {"modules": run.modules.standings, "module_operations": run.modules.operations}
            for name, table in tables.items():
                if not table.is_empty():
                    by_name.setdefault(name, []).append((run.name, table))
    return {name: _by_policy(tables) for name, tables in by_name.items()}
