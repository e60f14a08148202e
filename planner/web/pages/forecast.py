"""Show forecast quality: errors by hour of the week, missed peaks and forecasts of past moments."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import polars as pl

from planner.domain.report import Axis, Chart, Role, Series, Shape
from planner.models import Run
from planner.outputs.render.figure import Figure
from planner.outputs.render.plotly import figure_of
from planner.selectors.runs import run_table, run_tables, stored_result
from planner.web.charts.traffic import week_figure
from planner.web.request import TemplateContext

KEYS = ("model", "region", "tier", "unit")
LEAST_MISS = 0.0005  # share above the plan that rounds to 0.1%
MOST_MISSED = 5  # rows in the list of missed peaks
BEFORE = timedelta(days=1)  # history shown before a forecast


def forecast_context(run: Run, params: Mapping[str, str]) -> TemplateContext:
    """Return the template context for every kind of run that has forecast tables."""
    names, result = run_tables(run), stored_result(run)
    context: TemplateContext = {"run": run}
    if "forecast" in names and result.window is not None:
        table = run_table(run, "forecast").drop_nulls("actual")
        if table.height:
            if table["time"].dt.weekday().n_unique() > 1:  # one row is no pattern
                context["week_errors"] = week_errors(table, result.clock)
            context["missed"] = missed_peaks(table, result.window.period_s)
    if "moments" in names:
        context |= moment_context(run, params)
    return context


def week_errors(table: pl.DataFrame, clock: str) -> Figure:
    """Draw the mean absolute forecast error in percent of demand, by weekday and hour."""
    rows = (
        table.with_columns(
            day=pl.col("time").dt.weekday() - 1, hour=pl.col("time").dt.hour(),
            error=(pl.col("actual") - pl.col("mean")).abs(),
        )
        .group_by("day", "hour")
        .agg(pl.col("error").sum(), pl.col("actual").sum())
    )  # fmt: skip
    cells: list[list[float | None]] = [[None] * 24 for _ in range(7)]
    for row in rows.iter_rows(named=True):
        if row["actual"] > 0:
            cells[row["day"]][row["hour"]] = 100 * row["error"] / row["actual"]
    start_s = float(min(table["time"].dt.epoch("s").to_list()))
    return week_figure(cells, unit="% of demand", clock=clock, start_s=start_s)


@dataclass(frozen=True, slots=True)
class MissedPeaks:
    """The periods with a bin whose demand was above what was planned for.

    Without ``planned``, as in older runs, demand is compared with the 90% quantile.
    """

    periods: int  # of all series
    missed: int  # of them, with a bin above the plan
    planned: bool
    rows: list[dict[str, str | float | datetime]]

    @property
    def share(self) -> float:
        """Return the share of periods whose demand exceeded the plan in at least one bin."""
        return self.missed / self.periods


def missed_peaks(table: pl.DataFrame, period_s: float) -> MissedPeaks:
    """Return how many periods had a bin above the plan, and the worst ``MOST_MISSED`` of them.

    ``table`` has a row per bin and series (model, region, tier), in periods of ``period_s``.
    """
    planned = "planned" if "planned" in table.columns else "p90"  # in older runs
    first = table["time"].min()
    period = ((pl.col("time") - first).dt.total_seconds() // period_s).cast(pl.Int64)
    peaks = (
        table.with_columns(period=period)
        .group_by("model", "region", "tier", "period")
        .agg(pl.col("time").min(), pl.col("actual").max(), pl.col(planned).max().alias("planned"))
        .with_columns(over=pl.col("actual") / pl.col("planned") - 1)
    )
    missed = peaks.filter(pl.col("over") >= LEAST_MISS).sort("over", descending=True)
    worst = missed.head(MOST_MISSED).to_dicts()
    return MissedPeaks(peaks.height, missed.height, planned == "planned", worst)


def moment_context(run: Run, params: Mapping[str, str]) -> TemplateContext:
    """Return a forecast of one series, as made at the slider's time (default: the middle).

    ``params`` has the ``series`` (default: the first) and the index of the ``moment``.
    """
    moments = run_table(run, "moments")
    key_columns = [name for name in KEYS if name in moments.columns]  # older runs have no unit
    key_of_series = {
        " / ".join(key).replace("_", " "): key
        for key in moments.select(key_columns).unique(maintain_order=True).rows()
    }
    series = params.get("series", "")
    if series not in key_of_series:
        series = next(iter(key_of_series))
    key = zip(key_columns, key_of_series[series], strict=True)
    of_series = [pl.col(name) == value for name, value in key]
    moments = moments.filter(*of_series)
    origins = moments["origin"].unique().sort()  # times at which forecasts were made
    last = len(origins) - 1
    chosen = params.get("moment", "")
    index = min(int(chosen), last) if chosen.isdecimal() else last // 2  # of the slider
    origin = origins[index]
    forecast = moments.filter(pl.col("origin") == origin).sort("time")
    history = run_table(run, "history").filter(*of_series).sort("time")
    # The clock of the window, else of the trace, else UTC.
    window, trace = stored_result(run).window, run.trace
    clock = window.clock if window else ""
    if not clock and trace is not None:
        clock = trace.report.get("clock")
    clock = clock or "utc"
    return {
        "run": run,
        "moment": index,
        "moment_last": last,
        "moment_origin": origin,
        "moment_series": series,
        "moment_choices": list(key_of_series),
        "moment_clock": clock,
        "moment_error": _wape(forecast, history),
        "moment_figure": moment_figure(forecast, history, origin, clock),
    }


def _wape(forecast: pl.DataFrame, history: pl.DataFrame) -> float | None:
    """Return the WAPE of a forecast: the sum of absolute errors over the sum of actual demand.

    It is None without actual demand.
    """
    joined = forecast.join(history, on="time").drop_nulls("actual")
    actual = float(joined["actual"].sum() or 0.0)
    errors = float(np.abs(joined["actual"].to_numpy() - joined["mean"].to_numpy()).sum())
    return errors / actual if actual > 0 else None


def moment_figure(forecast: pl.DataFrame, history: pl.DataFrame, origin: Any, clock: str) -> Figure:
    """Draw the known demand, the forecast at ``origin`` and the actual demand after it."""
    amount = forecast["unit"][0] if "unit" in forecast.columns else "input_tokens"
    unit = f"{amount.replace('_', ' ')}/s"
    end = forecast["time"].max()
    known = history.filter((pl.col("time") >= origin - BEFORE) & (pl.col("time") < origin))
    actual = history.filter((pl.col("time") >= origin) & (pl.col("time") <= end))

    def values(rows: pl.DataFrame, column: str) -> tuple[float | None, ...]:
        return tuple(rows[column].round(2).fill_nan(None))

    ahead, band = tuple(forecast["time"]), "Forecast P10 to P90"
    high, low = values(forecast, "p90"), values(forecast, "p10")
    series = (
        Series(band, ahead, high, Role.FORECAST, Shape.BAND, low),
        Series("Demand known then", tuple(known["time"]), values(known, "actual"), Role.BASELINE),
        Series("Forecast then", ahead, values(forecast, "mean"), Role.RECOMMENDED),
        Series("Actual demand", tuple(actual["time"]), values(actual, "actual"), Role.MEASURED),
    )
    return figure_of(Chart("", Axis(), Axis(unit, unit), series), clock)
