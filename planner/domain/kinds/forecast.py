"""Forecast what follows a trace, or the demand for the plan of a scenario."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from pydantic import Field

from forecasting.backtest import Backtest
from forecasting.cleaning import clean
from forecasting.demand import INPUT_TOKENS, DemandSeries, SeriesKey
from forecasting.forecast import Forecast, MethodScore
from forecasting.multi_series import (
    backtest_long_series,
    backtest_series,
    forecast_series,
    steps_of,
)
from planner.domain.columns import NUMBER, SECONDS, TEXT, Column
from planner.domain.options import RunOptions
from planner.domain.outcome import Inputs, Outcome
from planner.domain.planning.inputs import usd_per_tps
from planner.domain.progress import Progress, part
from planner.domain.results import tables
from planner.domain.results.basis import (
    SERIES,
    Forecasts,
    WindowFacts,
    gaps_note,
    series_columns,
    window_facts,
)
from planner.domain.serialise import COLUMNS, OPTIONAL, moment
from planner.domain.sizing.sizing import size_over_time
from planner.domain.traffic.forecast_percentile import Quantiles
from planner.domain.traffic.forecasts import SeriesForecast, forecast_window
from planner.domain.traffic.groups import groups_of
from planner.domain.traffic.known_lengths import known_lengths
from planner.domain.traffic.past_forecasts import (
    NaiveComparison,
    largest_past_forecasts,
    naive_comparison,
    naive_sentence,
    past_forecasts_of_series,
)
from planner.domain.traffic.series import idle_sentences, uncounted_units_sentence
from planner.domain.traffic.traffic import traffic_and_window
from planner.errors import ScenarioError
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.holidays import GIVE, Holiday, holidays_in_words, holidays_of
from planner.inputs.scenario.schema.planning import Method
from planner.inputs.scenario.settings import ALL, settings_of
from planner.schema_types import BinS

MOST_BINS = 10_000  # most bins to forecast per series
ERRORS = ("wape", "peak_wape", "mase", "coverage80", "bias")
NAIVE = ("last-value", "seasonal-naive")
LEAST_DIFFERENCE = 0.0005  # of two errors: a smaller one does not show when rounded to 0.1%
AHEAD = series_columns(
    "ahead.",
    attrgetter("ahead.unit"),
    Column("bin_s", SECONDS, "width of a bin", attrgetter("ahead.bin_s")),
    Column("start", TEXT, "start of the forecast", lambda row: moment(row.ahead.start_s)),
    Column("peak", NUMBER, "largest bin of the forecast, expected", lambda row: row.ahead.peak()),
    Column("peak_p90", NUMBER, "forecast peak, 90% quantile", lambda row: row.ahead.peak(0.9)),
    Column("reason", TEXT, "why this method, where it was chosen", attrgetter("ahead.reason")),
    Column("note", TEXT, "where it was worse than naive", attrgetter("note")),
    Column("cleaned", TEXT, "bins read as gaps", attrgetter("cleaned")),
)
YEAR_S = 366 * 86_400.0


class Options(RunOptions):
    """Options of the forecast for a scenario's plan."""

    method: Method | None = Field(None, title="Method")
    """Forecast method. Default: the scenario's."""
    holidays: tuple[Holiday, ...] = Field(
        (), title="Holidays", min_length=1, max_length=100, json_schema_extra={"give": GIVE}
    )
    """Countries (US, DE-BY) or dates with their own kind of day. Default: the scenario's."""


class TraceOptions(Options):
    """Options of the forecast of a trace without a scenario; default method: auto."""

    bin_s: BinS = Field(
        900.0, title="Seconds per bin", description="Width of a bin of a trace. Default: 900."
    )
    horizon_s: float = Field(
        3600.0,
        title="Seconds ahead",
        gt=0,
        le=YEAR_S,
        description="Length of the forecast of a trace. Default: 3600.",
    )
    origins: int = Field(
        0,
        title="Origins",
        ge=0,
        le=1000,
        description="Past moments from which errors are measured. Default: 0.",
    )


@dataclass(frozen=True, slots=True, eq=False)
class TimedForecast(Forecasts):
    """The forecasts of a scenario, and how long they took."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class ComparedMethod:
    """A forecast method with its errors in a backtest of one series."""

    model: str
    region: str
    tier: str
    unit: str
    method: str
    error: float  # error of recent peaks, over mean demand
    over_chosen: float | None  # that error over the error of the chosen method
    share: float  # weight in the ensemble, for the next window
    end_share: float  # weight in the ensemble, for the last bin
    chosen: bool


def compared_methods(
    series: Iterable[tuple[SeriesKey, str, Sequence[MethodScore]]],
) -> tuple[ComparedMethod, ...]:
    """Return the forecast methods that the method "auto" compared, for all series.

    ``series`` has (key, unit, scores) of each series, with the score of its best method first.
    """
    rows = []
    for key, unit, scores in series:
        chosen_error = next((score.error for score in scores if score.chosen), 0.0)
        rows += [
            ComparedMethod(
                key.model, key.region, key.tier, unit, score.method, score.error,
                over_chosen=score.error / chosen_error if chosen_error > 0 else None,
                share=score.share, end_share=score.end_share, chosen=score.chosen,
            )
            for score in scores
        ]  # fmt: skip
    return tuple(rows)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ForecastResult:
    """The forecast for the plan of a scenario."""

    kind: str = "forecast"
    scenario: str
    headline: str  # error, compared with naive forecasts
    compared: NaiveComparison | None = field(default=None, metadata={OPTIONAL: True})
    window: WindowFacts
    series: tuple[SeriesForecast, ...] = field(metadata={COLUMNS: SERIES})
    methods: tuple[ComparedMethod, ...]
    forecast: TimedForecast
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class SeriesAhead:
    """The forecast of one series after its end, in amounts per bin.

    ``errors`` are those of a backtest by name, such as "wape"; None without a backtest.
    """

    ahead: Forecast
    errors: dict[str, float | None]
    note: str = ""  # says if a naive forecast was better in the backtest
    cleaned: str = ""  # bins that count as gaps, in words


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class SeriesResult:
    """The result of a forecast of a trace without a scenario."""

    kind: str = "forecast"
    series: tuple[SeriesAhead, ...] = field(metadata={COLUMNS: AHEAD})
    methods: tuple[ComparedMethod, ...]
    notes: tuple[str, ...]
    seconds: float


def run(inputs: Inputs, options: Options, progress: Progress) -> Outcome:
    """Forecast the demand that a plan of the scenario would be made for, with past errors."""
    begun, scenario = time.perf_counter(), inputs.scenario
    stated = {"method": options.method, "holidays": options.holidays}
    overrides = {name: value for name, value in stated.items() if value}
    if overrides:
        section = scenario.forecast.model_copy(update=overrides)
        scenario = scenario.model_copy(update={"forecast": section})
    hardware, settings = build_hardware(scenario, inputs.user_facts), settings_of(scenario)
    progress(0.0, "Reading the traffic")
    traffic, window = traffic_and_window(settings, inputs.traces)
    plan, method = settings.plan, settings.plan.forecast.method
    at_once = plan.objective.periods == ALL
    capacity_usd_per_tps = None
    if plan.forecast.late_usd is not None:  # the planned percentile is chosen by cost
        lengths = known_lengths(traffic, window, settings.seed)
        sizes = size_over_time(hardware, lengths, settings.seed, part(progress, 0.0, 0.1))
        capacity_usd_per_tps = usd_per_tps(hardware, sizes)
    # The percentile that a plan is made for, by group of tiers.
    quantiles = Quantiles(
        hardware, traffic, window, plan.forecast,
        tiers_planned_separately=plan.plans_tiers_separately, usd_per_tps=capacity_usd_per_tps,
    ).planned_quantiles(at_once=at_once, progress=part(progress, 0.1, 0.4))  # fmt: skip
    groups = groups_of(hardware, one_per_tier=plan.plans_tiers_separately)
    forecasts = forecast_window(
        [
            (group, quantile.planning_level)
            for group, quantile in zip(groups, quantiles, strict=True)
        ],
        traffic,
        window,
        method=method,
        progress=part(progress, 0.4, 0.7),
        at_once=at_once,
    )
    if not forecasts:
        raise ScenarioError("traffic: no interactive tier has any demand; nothing to forecast.")
    compared = naive_comparison(groups, traffic, window, forecasts)
    past_forecasts = largest_past_forecasts(
        groups, traffic, window, method, part(progress, 0.7, 1.0)
    )
    seconds = time.perf_counter() - begun
    return Outcome(
        ForecastResult(
            scenario=scenario.name,
            headline=naive_sentence(compared, method, len(window.period_starts_s)),
            compared=compared,
            window=window_facts(window, traffic),
            series=forecasts,
            methods=compared_methods((row.key, INPUT_TOKENS, row.compared) for row in forecasts),
            forecast=TimedForecast(forecasts, quantiles, seconds),
            notes=(*gaps_note(traffic, window), *traffic.notes),
            seconds=seconds,
        ),
        {
            "demand": tables.demand_table(traffic.demand),
            "forecast": tables.forecast_table(forecasts),
            **tables.looking_back_tables(past_forecasts),
        },
    )


def run_series(
    series: Sequence[DemandSeries], options: TraceOptions, *, progress: Progress
) -> Outcome:
    """Forecast each series after its end, with the errors of a backtest on its last part.

    Raises ScenarioError if the horizon is more than ``MOST_BINS`` bins of a series.
    """
    method, origins = options.method or "auto", options.origins
    begun = time.perf_counter()
    for demand in series:
        bins = steps_of(demand, options.horizon_s)
        if bins > MOST_BINS:
            raise ScenarioError(
                f"{demand.key}: a horizon of {options.horizon_s:g} s is {bins:,} bins of "
                f"{demand.bin_s:g} s and {MOST_BINS:,} are allowed. Choose a shorter horizon or "
                "wider bins."
            )
    start_s = min(demand.start_s for demand in series)
    end_s = max(demand.end_s for demand in series)
    if options.holidays:
        holidays = holidays_of(options.holidays, start_s, end_s)
        series = [replace(demand, holidays=holidays) for demand in series]
    holidays_named = holidays_in_words(options.holidays, start_s, end_s)
    progress(0.0, f"Forecasting {len(series):,} series")
    ahead = forecast_series(series, method, options.horizon_s)
    errors: list[dict[str, float | None]] = [dict.fromkeys(ERRORS) for _ in series]
    notes = [""] * len(series)
    if origins:
        progress(0.3, f"Forecasting from {origins:,} past moments")
        backtests = backtest_series(series, method, options.horizon_s, origins)
        errors = [{name: getattr(tested, name) for name in ERRORS} for tested in backtests]
        notes = _worse_than_naive(series, backtests, options.horizon_s, origins)
    cleaned = map(_cleaned_bins_sentence, series)
    series_ahead = tuple(map(SeriesAhead, ahead, errors, notes, cleaned))
    progress(0.8, "Forecasting from past moments")
    past_forecasts = past_forecasts_of_series(series, method, options.horizon_s)
    rows = [
        (demand, forecast.mean, forecast.quantile(0.1), forecast.quantile(0.9))
        for demand, forecast in zip(series, ahead, strict=True)
    ]
    return Outcome(
        SeriesResult(
            series=series_ahead,
            methods=compared_methods((row.key, row.unit, row.compared) for row in ahead),
            notes=(
                *idle_sentences(series),
                *uncounted_units_sentence(series),
                *([holidays_named] if holidays_named else []),
            ),
            seconds=time.perf_counter() - begun,
        ),
        {"series": tables.series_table(rows), **tables.looking_back_tables(past_forecasts)},
    )


def _worse_than_naive(
    series: Sequence[DemandSeries], backtests: Sequence[Backtest], horizon_s: float, origins: int
) -> list[str]:
    """Return for each series a sentence if a naive forecast predicts its peaks better, else "".

    ``backtests`` are those of the forecast of each series, from ``origins`` past moments.
    """
    notes = [""] * len(series)
    for method in NAIVE:  # the simplest first
        naive_backtests = backtest_long_series(series, method, horizon_s, origins)
        for i, (tested, naive) in enumerate(zip(backtests, naive_backtests, strict=True)):
            # A simpler method already won, or the series is too short for this one.
            if notes[i] or naive is None:
                continue
            if naive.peak_wape < tested.peak_wape - LEAST_DIFFERENCE:
                notes[i] = (
                    f"Worse than {method}: peak WAPE {tested.peak_wape:.1%} instead of "
                    f"{naive.peak_wape:.1%} (MASE {tested.mase:.2f})."
                )
    return notes


def _cleaned_bins_sentence(series: DemandSeries) -> str:
    """Return in words the bins of a series that are no real demand, such as outages; "": none."""
    # ``clean`` takes several series, so pass an array [1, bins] and read the first.
    removed = clean(series.values[None], series.bin_s).bins(0, series.values)
    return "; ".join(
        f"{moment(series.start_s + row.bin * series.bin_s)}: {row.amount:g}, {row.reason}"
        for row in removed
    )
