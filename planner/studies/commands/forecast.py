"""What comes after a trace, or what the plan of a scenario would stand on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from forecasting.backtest import backtest
from forecasting.demand import DemandSeries
from forecasting.selection import forecaster
from planner.errors import ScenarioError
from planner.scenario.build import build_hardware
from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Scenario
from planner.studies.outcome import Outcome, Traces
from planner.studies.preparing import gaps_noted
from planner.studies.progress import Progress, part
from planner.studies.results import documents as doc
from planner.studies.results import tables
from planner.studies.traffic.forecasts import forecast_window
from planner.studies.traffic.traffic import build_traffic
from planner.studies.traffic.window import resolve_window

MAX_STEPS = 10_000  # bins forecast ahead of one series


def run(
    scenario: Scenario, traces: Traces, *, known: Known = NOTHING, progress: Progress
) -> Outcome:
    """The forecast a plan of this scenario would stand on, period by period, with its errors."""
    begun = time.perf_counter()
    hardware = build_hardware(scenario, known)
    progress(0.0, "Reading the traffic")
    traffic = build_traffic(scenario, traces)
    window = resolve_window(scenario, traffic.demand, traffic.clock)
    found = forecast_window(
        hardware,
        traffic,
        window,
        method=scenario.forecast.method,
        quantile=scenario.forecast.quantile,
        progress=part(progress, 0.1, 1.0),
    )
    if not found:
        raise ScenarioError("traffic: no interactive tier has any demand; nothing to forecast.")
    seconds = time.perf_counter() - begun
    series = doc.forecast_document(found)
    return Outcome(
        {
            "kind": "forecast",
            "scenario": scenario.name,
            "window": doc.window_document(window, traffic),
            "series": series,
            "forecast": {"series": series, "seconds": seconds},
            "notes": [*gaps_noted(traffic, window), *traffic.notes],
            "seconds": seconds,
        },
        {
            "demand": tables.demand_table(traffic.demand),
            "forecast": tables.forecast_table(found),
        },
    )


def run_series(
    series: Sequence[DemandSeries],
    *,
    horizon_s: float,
    method: str,
    origins: int,
    progress: Progress,
) -> Outcome:
    """Forecast what follows each series, with the errors of a backtest over its last ``origins``
    (0: none)."""
    begun = time.perf_counter()
    listed, rows = [], []
    for i, one in enumerate(series):
        progress(i / len(series), f"Forecasting {one.key}")
        steps = max(1, round(horizon_s / one.bin_s))
        if steps > MAX_STEPS:
            raise ScenarioError(
                f"{one.key}: a horizon of {horizon_s:g} s is {steps:,} bins of {one.bin_s:g} s and "
                f"{MAX_STEPS:,} are allowed; choose a shorter horizon or wider bins."
            )
        fitted = forecaster(method, horizon_bins=steps).fit(one)
        ahead = fitted.predict(steps)
        errors: dict[str, float | None] = dict.fromkeys(("wape", "peak_wape", "mase", "coverage80"))
        if origins:
            make = partial(forecaster, method, horizon_bins=steps)
            tested = backtest(one, make, steps, origins)
            errors = {name: doc.clean(getattr(tested, name)) for name in errors}
        rows.append((one, ahead.mean, ahead.quantile(0.1), ahead.quantile(0.9)))
        listed.append(
            {
                "model": one.key.model,
                "region": one.key.region,
                "tier": one.key.tier,
                "method": ahead.method,
                "order": ahead.order,
                "unit": one.unit,
                "bin_s": one.bin_s,
                "start": doc.moment(ahead.start_s),
                **errors,
                "fit_seconds": ahead.fit_seconds,
                "forecast": [doc.clean(amount) for amount in ahead.mean.tolist()],
            }
        )
    return Outcome(
        {"kind": "forecast", "series": listed, "seconds": time.perf_counter() - begun},
        {"series": tables.series_table(rows)},
    )
