"""Backtest forecasts from past origins; each uses only the bins before its origin.

An origin is the bin edge at which a forecast begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forecasting.arrays import FloatArray, IntArray
from forecasting.demand import DemandSeries
from forecasting.errors import SeriesTooShort
from forecasting.forecast import Forecast, Forecaster


@dataclass(frozen=True, slots=True, eq=False)
class Backtest:
    """Forecasts of one method from past origins, and their errors.

    Relative errors are fractions of demand over all observed bins of all origins. They are NaN if
    the divisor is 0.
    """

    method: str
    order: str
    origins_s: FloatArray  # [origin] UTC epoch seconds
    actual: FloatArray  # [origin, step] amount per bin, NaN for gaps
    mean: FloatArray  # [origin, step]
    forecasts: tuple[Forecast, ...]  # one per origin, for plotting
    fit_seconds: float

    wape: float
    peak_wape: float
    mase: float
    coverage80: float
    bias: float


def rolling_forecasts(
    series: DemandSeries, forecaster: Forecaster, origins_s: Sequence[float], steps: int
) -> list[Forecast]:
    """Forecast ``steps`` bins after each origin from the bins before it.

    ``forecaster`` is fitted at the first origin. At later ones it is updated, with the same
    parameters. ``origins_s`` are UTC epoch seconds on bin edges, rising, and not after the end of
    ``series``.
    """
    forecasts: list[Forecast] = []
    known_until_s = series.start_s
    for origin_s in origins_s:
        new_bins = series.window(known_until_s, origin_s)
        forecaster = forecaster.update(new_bins) if forecasts else forecaster.fit(new_bins)
        forecasts.append(forecaster.predict(steps))
        known_until_s = new_bins.end_s
    return forecasts


def last_origins(series: DemandSeries, horizon_bins: int, origins: int, stride: int) -> IntArray:
    """Return the first forecast bin of each of the last ``origins`` forecasts, as indices.

    The last forecast of ``horizon_bins`` ends with the series. Origins are ``stride`` bins apart.
    Raises SeriesTooShort if the first forecast would begin before the second bin.
    """
    first = series.bins - horizon_bins - (origins - 1) * stride
    if first < 1:
        raise SeriesTooShort(
            f"{series.key}: {origins} origins with a horizon of {horizon_bins} bins need at least "
            f"{series.bins - first + 1} bins and there are {series.bins}. Ask for fewer origins."
        )
    return np.asarray(first + stride * np.arange(origins), np.int64)


def evaluate(
    series: DemandSeries, origin_bins: IntArray, forecasts: Sequence[Forecast]
) -> Backtest:
    """Return forecasts that begin at the bins ``origin_bins`` of ``series``, with their errors.

    Errors are over all forecasts. MASE relates them to the history before the first one.
    """
    # [origin, step] bins after each origin
    actual = series.values[origin_bins[:, None] + np.arange(forecasts[0].steps)]
    mean = np.stack([forecast.mean for forecast in forecasts])
    low, high = _quantiles(forecasts, 0.1), _quantiles(forecasts, 0.9)
    return Backtest(
        method=forecasts[0].method,
        order=forecasts[0].order,
        origins_s=np.asarray(series.start_s + series.bin_s * origin_bins, np.float64),
        actual=actual,
        mean=mean,
        forecasts=tuple(forecasts),
        fit_seconds=forecasts[0].fit_seconds,
        wape=wape(actual, mean),
        peak_wape=peak_wape(actual, mean),
        mase=mase(actual, mean, series.values[: int(origin_bins[0])]),
        coverage80=coverage(actual, low, high),
        bias=bias(actual, mean),
    )


def _quantiles(forecasts: Sequence[Forecast], level: float) -> FloatArray:
    """Return the quantiles of all forecasts at ``level``, ``[origin, step]``."""
    return np.stack([forecast.quantile(level) for forecast in forecasts])


def mean_absolute_error(actual: FloatArray, mean: FloatArray) -> float:
    """Return the mean absolute error over observed bins, in amounts per bin."""
    observed = ~np.isnan(actual)
    return _ratio(np.abs(actual - mean)[observed].sum(), observed.sum())


def wape(actual: FloatArray, mean: FloatArray) -> float:
    """Return the weighted absolute percentage error, ``sum |y - f| / sum y``, of observed bins."""
    observed = ~np.isnan(actual)
    return _ratio(np.abs(actual - mean)[observed].sum(), actual[observed].sum())


def bias(actual: FloatArray, mean: FloatArray) -> float:
    """Return ``sum (f - y) / sum y`` over observed bins; above 0 if the forecast was too high."""
    observed = ~np.isnan(actual)
    return _ratio((mean - actual)[observed].sum(), actual[observed].sum())


def peak_wape(actual: FloatArray, mean: FloatArray) -> float:
    """Return the relative error of peaks: ``sum |max y - max f| / sum max y`` over the rows.

    Each row of ``actual`` and ``mean`` is a forecast of several bins. Both maxima are taken over
    its observed bins. Rows without observed bins are ignored.
    """
    observed = ~np.isnan(actual)
    has_bins = observed.any(axis=1)
    actual_peak = np.where(observed, actual, -np.inf).max(axis=1)[has_bins]
    forecast_peak = np.where(observed, mean, -np.inf).max(axis=1)[has_bins]
    return _ratio(np.abs(actual_peak - forecast_peak).sum(), actual_peak.sum())


def mase(actual: FloatArray, mean: FloatArray, history: FloatArray) -> float:
    """Return the mean absolute error divided by that of the naive forecast in ``history``.

    The naive forecast repeats the last bin, one bin ahead. A good forecast of more than one bin
    ahead may therefore have more than 1. Hyndman and Koehler 2006, International Journal of
    Forecasting 22, eq. for q_t.
    """
    steps = np.abs(np.diff(history))
    steps = steps[~np.isnan(steps)]
    return _ratio(mean_absolute_error(actual, mean) * steps.size, steps.sum())


def coverage(actual: FloatArray, low: FloatArray, high: FloatArray) -> float:
    """Return the share of observed bins within ``[low, high]``."""
    observed = ~np.isnan(actual)
    inside = (low <= actual) & (actual <= high)
    return _ratio(inside[observed].sum(), observed.sum())


def _ratio(numerator: float, denominator: float) -> float:
    """Return the quotient, or NaN if ``denominator`` is not positive."""
    return float(numerator / denominator) if denominator > 0 else float("nan")
