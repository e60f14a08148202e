"""Backtest one series from rolling origins."""

from collections.abc import Callable

from forecasting.backtest import Backtest, evaluate, last_origins, rolling_forecasts
from forecasting.demand import DemandSeries
from forecasting.forecast import Forecaster


def backtest(
    series: DemandSeries,
    make_forecaster: Callable[[], Forecaster],
    horizon_bins: int,
    origins: int,
    stride_bins: int | None = None,
) -> Backtest:
    """Forecast ``horizon_bins`` from the last ``origins`` origins, ``stride_bins`` apart.

    The last forecast ends with the series. The default stride is the horizon, so that each bin is
    forecast once. Raises SeriesTooShort if no bin precedes the first origin, and whatever ``fit``
    raises.
    """
    stride = horizon_bins if stride_bins is None else stride_bins
    origin_bins = last_origins(series, horizon_bins, origins, stride)
    origins_s = (series.start_s + series.bin_s * origin_bins).tolist()
    forecasts = rolling_forecasts(series, make_forecaster(), origins_s, horizon_bins)
    return evaluate(series, origin_bins, forecasts)
