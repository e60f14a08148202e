"""Errors of the next hour's peak and of the next day on public traces, and time for 1,000 series.

    python -m bench.forecast [--json] [--only accuracy|speed] [--unseen] [--series FILE.csv ...]

Azure 2024 (conv, code) in bins of 15 minutes, BurstGPT by the hour (all requests, and its
conversations), ServeGen's m-large and m-mid as they are, by ten minutes: each is forecast from
every hour of its last half with what was known by then. ``--unseen`` judges series that nothing was
chosen on instead: what Azure's conversations generated and its code read, in tokens by the hour,
and m-large's clients without its ten largest. ``--series`` judges files instead: a header
line, then time in seconds and amount per bin, equally spaced, amount empty for a gap.

- ``worst_over_best``: error of ``auto``'s peaks over that of the best of last value, seasonal naive
  by day and by week and moving maximum, on the series where it does worst.
- ``diurnal_gain``: what it is better than the better of seasonal naive and last value, on the
  worst of the series with a daily cycle: whose first half correlates with itself a day later by
  DIURNAL or more.
- ``coverage80_low``, ``coverage80_high``: share of peaks within the 80% band, on the series with
  the least and the most.
- ``day_ahead_pinball_over_best_baseline``: pinball loss of ``auto``'s quantiles of the next day,
  over that of the best of three baselines on the same series (``bench.day_ahead``), mean of all
  series; ``day_ahead_worst_over_best``: the same on the series where it does worst.
- ``day_ahead_coverage80_low``, ``day_ahead_coverage80_high``: share of bins of the next day within
  the 80% band, on the series with the least and the most.
- ``day_ahead_cpu_seconds``: CPU time of ``auto`` for all of them.
- ``batch_seconds``: one method (regression) fitted and forecast, with its bands, on 1,000 made
  series of four weeks by 15 minutes; ``auto_with_arima_seconds``: ``auto`` with all its backtests
  on them; ``one_series_seconds``: ``auto`` on the first of them alone; ``update_seconds``: one bin
  more of each taken in and forecast anew.
- ``series``: all figures of each series. An error is the sum of what peaks were off by over the sum
  of peaks.
"""

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from bench.day_ahead import DayAhead, judge_day_ahead
from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import Panel
from forecasting.panel_forecaster import PanelForecaster
from forecasting.rules.registry import AUTO, LAST_VALUE, NAIVE, RULES, SEASONAL_NAIVE

TRACES = Path(__file__).parents[1] / "../shared/data/traces"
HOUR_S, DAY_S = 3600.0, 86_400.0
DIURNAL = 0.5
SPEED_SERIES, SPEED_DAYS, SPEED_BIN_S = 1000, 28, 900.0
SPEED_METHOD = "regression"


@dataclass(frozen=True, slots=True)
class SeriesScore:
    """The forecast errors of one series over the hours of its last half."""

    name: str
    hours: int
    gaps: int  # hours not judged, no bin of them observed
    best: str  # of the naive ones
    best_error: float
    error: float  # of auto
    over_best: float
    gain: float | None  # over last value and seasonal naive, where the series has a daily cycle
    coverage80: float
    bin_coverage80: float
    day_correlation: float | None
    naive: dict[str, float]
    took: dict[str, int]  # hours by what auto rested on
    day_ahead: DayAhead | None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--only", choices=("accuracy", "speed"))
    parser.add_argument("--unseen", action="store_true", help="series nothing was chosen on")
    parser.add_argument("--series", type=Path, nargs="*", default=[], help="files to judge")
    args = parser.parse_args()
    figures: dict[str, object] = {}
    if args.only != "speed":
        series = {path.stem: read(path) for path in args.series}
        series = series or (unseen() if args.unseen else public())
        figures |= accuracy([judge(name, *sequence) for name, sequence in series.items()])
    if args.only != "accuracy":
        figures |= measure_speed()
    if args.json:
        print(json.dumps(figures))
        return
    for row in figures.pop("series", []):  # type: ignore[attr-defined]
        print(
            f"{row['name']:18} best {row['best']} {row['best_error']:.1%}, auto {row['error']:.1%} "
            f"({row['over_best']:.3f}), 80% band {row['coverage80']:.1%} of {row['hours']} peaks"
        )
        if day := row["day_ahead"]:
            loss = day["baselines"][day["best"]]
            print(
                f"{'  a day ahead':18} best {day['best']} {loss:.1%}, auto {day['pinball']:.1%} "
                f"({day['over_best']:.3f}), 80% band {day['coverage80']:.1%} of bins"
            )
    for name, value in figures.items():
        print(f"{name:18} {value:.3f}")


def public() -> dict[str, tuple[FloatArray, float]]:
    if not TRACES.exists():
        sys.exit("The traces are not in ../shared/data/traces; give files with --series.")
    azure = pl.read_csv(TRACES / "azure2024_requests_10s.csv.gz")
    burst = pl.read_csv(TRACES / "burstgpt_hourly.csv")
    served = pl.read_csv(TRACES / "servegen_total_rates_10min.csv").sort("t_s")
    talk = burst["conversation_requests"].to_numpy().astype(np.float64)
    series = {}
    for service in ("conv", "code"):
        counts = azure.filter(pl.col("service") == service)["requests"].to_numpy()
        # the last bin is half a bin
        series[f"azure-{service}"] = counts[:-1].astype(float).reshape(-1, 90).sum(axis=1), 900.0
    series["burstgpt"] = talk + burst["api_requests"].to_numpy(), HOUR_S
    series["burstgpt-talk"] = talk, HOUR_S
    for model in ("m-large", "m-mid"):
        rates = served.filter(pl.col("model") == model)["rate_rps"].to_numpy()
        series[model] = np.where(rates == 0, np.nan, 600.0 * rates), 600.0  # 0: nothing collected
    return series


def unseen() -> dict[str, tuple[FloatArray, float]]:
    if not TRACES.exists():
        sys.exit("The traces are not in ../shared/data/traces; give files with --series.")
    series = {}
    tokens = pl.read_csv(TRACES / "azure2024_hourly_tokens.csv")
    for service, column in (("conv", "generated_tokens"), ("code", "context_tokens_clip4096")):
        rows = tokens.sort(f"{service}_hour_utc")[f"{service}_{column}"]
        series[f"{service}-tokens"] = rows.to_numpy().astype(np.float64), HOUR_S
    clients = pl.read_parquet(TRACES / "servegen_m-large_clients_10min.parquet")
    volume = clients.group_by("client").agg(pl.col("rate_rps").sum())
    largest = volume.sort("rate_rps", "client", descending=True)["client"].head(10).to_list()
    rest = pl.when(~pl.col("client").is_in(largest)).then("rate_rps").otherwise(0.0)
    rates = clients.group_by("t_s").agg(rest.sum().alias("rate")).sort("t_s")["rate"].to_numpy()
    series["m-large-tail"] = np.where(rates == 0, np.nan, 600.0 * rates), 600.0
    return series


def read(path: Path) -> tuple[FloatArray, float]:
    table = pl.read_csv(path)
    times = table[:, 0].cast(pl.Float64).to_numpy()
    return table[:, 1].cast(pl.Float64).fill_null(np.nan).to_numpy(), float(times[1] - times[0])


def judge(name: str, values: FloatArray, bin_s: float) -> SeriesScore:
    """Fit on the first half, then follow hour by hour to the end."""
    window = max(1, round(HOUR_S / bin_s))
    half = -(-(values.size // 2) // window) * window
    origins = np.arange(half, values.size - window + 1, window)
    came = values[origins[:, None] + np.arange(window)]
    seen = ~np.isnan(came)
    peaks = np.where(seen, came, -np.inf).max(axis=1)
    judged = seen.any(axis=1)
    tops, bands, inside, took = _rolling_forecast(AUTO, values, bin_s, origins, window)
    naive, panel = {}, Panel(0.0, bin_s, values[None])
    for method in NAIVE:
        if method == "seasonal-naive-week" and half * bin_s < 7 * DAY_S:
            continue
        rule = RULES[method].fit(panel)  # of these nothing is learnt
        naive[method] = _error(peaks, rule.paths(panel, origins, window)[0].max(axis=1), judged)
    best = min(naive, key=lambda method: naive[method])
    error = _error(peaks, tops, judged)
    rhythm = _day_correlation(values[:half], bin_s)
    plain = [naive[method] for method in (LAST_VALUE, SEASONAL_NAIVE) if method in naive]
    within = (bands[0] <= peaks) & (peaks <= bands[1])
    return SeriesScore(
        name=name,
        hours=int(judged.sum()),
        gaps=int((~judged).sum()),
        best=best,
        best_error=naive[best],
        error=error,
        over_best=error / naive[best],
        gain=1 - error / min(plain) if rhythm is not None and rhythm >= DIURNAL else None,
        coverage80=float(within[judged].mean()),
        bin_coverage80=float(inside[seen].mean()),
        day_correlation=rhythm,
        naive=naive,
        took=took,
        day_ahead=judge_day_ahead(values, bin_s),
    )


def accuracy(judged: list[SeriesScore]) -> dict[str, object]:
    gains = [verdict.gain for verdict in judged if verdict.gain is not None]
    days = [verdict.day_ahead for verdict in judged if verdict.day_ahead is not None]
    return {
        "worst_over_best": max(verdict.over_best for verdict in judged),
        "diurnal_gain": min(gains) if gains else float("nan"),
        "coverage80_low": min(verdict.coverage80 for verdict in judged),
        "coverage80_high": max(verdict.coverage80 for verdict in judged),
        "day_ahead_pinball_over_best_baseline": float(np.mean([day.over_best for day in days])),
        "day_ahead_worst_over_best": max(day.over_best for day in days),
        "day_ahead_coverage80_low": min(day.coverage80 for day in days),
        "day_ahead_coverage80_high": max(day.coverage80 for day in days),
        "day_ahead_cpu_seconds": sum(day.cpu_seconds for day in days),
        "series": [asdict(verdict) for verdict in judged],
    }


def measure_speed() -> dict[str, float]:
    panel = synthetic_panel()
    alone = replace(panel, values=panel.values[:1])
    auto = PanelForecaster(AUTO)
    steps = {
        "batch": lambda: PanelForecaster(SPEED_METHOD).fit(panel).predict(4),
        "one_series": lambda: PanelForecaster(AUTO).fit(alone).predict(4),
        "auto_with_arima": lambda: auto.fit(panel).predict(4),
        # the bin of the day before again
        "update": lambda: auto.update(panel.values[:, -96:-95]).predict(4),
    }
    figures = {}
    for name, step in steps.items():
        began, cpu = time.perf_counter(), time.process_time()
        step()
        figures[f"{name}_seconds"] = time.perf_counter() - began
        figures[f"{name}_cpu_seconds"] = time.process_time() - cpu
    return figures


def synthetic_panel() -> Panel:
    """Return series with daily and weekly cycles and correlated noise; 1% of the bins are gaps."""
    rng = np.random.default_rng(0)
    hours = np.arange(round(SPEED_DAYS * DAY_S / SPEED_BIN_S)) * SPEED_BIN_S / HOUR_S
    phase, size = rng.uniform(0, 24, (SPEED_SERIES, 1)), rng.lognormal(4, 1, (SPEED_SERIES, 1))
    day = np.sin(2 * np.pi * (hours - phase) / 24)
    week = np.where((hours // 24) % 7 >= 5, 0.5, 1.0)
    noise = np.cumsum(rng.normal(0, 0.05, (SPEED_SERIES, hours.size)), axis=1) / 10
    counts = rng.poisson(size * week * np.exp(0.6 * day + noise)).astype(np.float64)
    counts[rng.random(counts.shape) < 0.01] = np.nan
    return Panel(0.0, SPEED_BIN_S, counts)


def _rolling_forecast(
    method: str, values: FloatArray, bin_s: float, origins: IntArray, window: int
) -> tuple[FloatArray, FloatArray, FloatArray, dict[str, int]]:
    """Forecast one series from each origin on, and compare with what came.

    Returns the peaks ``[o]``, their 80% band ``[2, o]``, whether each bin was in its 80% band ``[o,
    window]``, and how often each method was used.
    """
    batch = PanelForecaster(method, window).fit(Panel(0.0, bin_s, values[None, : origins[0]]))
    seen = origins[0]
    tops, bands, inside, took = [], [], [], dict[str, int]()
    for origin in origins:
        if origin > seen:
            batch.update(values[None, seen:origin])
            seen = origin
        predicted = batch.predict(window)
        low, high = predicted.levels.index(0.1), predicted.levels.index(0.9)
        tops.append(predicted.peak[0, -1])
        bands.append(predicted.peak_quantiles[0, [low, high], -1])
        came = values[origin : origin + window]
        inside.append(
            (predicted.quantiles[0, low] <= came) & (came <= predicted.quantiles[0, high])
        )
        took[predicted.methods[0]] = took.get(predicted.methods[0], 0) + 1
    return np.array(tops), np.array(bands).T, np.array(inside), took


def _error(peaks: FloatArray, tops: FloatArray, judged: FloatArray) -> float:
    return float(np.abs(peaks - tops)[judged].sum() / peaks[judged].sum())


def _day_correlation(values: FloatArray, bin_s: float) -> float | None:
    """Return a series' correlation with itself a day later; None if it is too short."""
    day = round(DAY_S / bin_s)
    if values.size <= day + 2:
        return None
    now, later = values[:-day], values[day:]
    both = ~np.isnan(now) & ~np.isnan(later)
    if both.sum() < 3 or now[both].std() == 0 or later[both].std() == 0:
        return None
    return float(np.corrcoef(now[both], later[both])[0, 1])


if __name__ == "__main__":
    main()
