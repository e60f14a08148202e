"""Azure's 2024 week: two services, counted in ten-second bins (README of the shared data)."""

from datetime import datetime

import numpy as np
import polars as pl
import pytest

from forecasting.demand import REQUESTS, DemandSeries, SeriesKey
from forecasting.selection import forecaster
from tests.forecasting.rolling import backtest
from tests.shared_folder import TRACES, shared


@pytest.fixture(scope="module")
def azure():
    table = pl.read_csv(shared(TRACES / "azure2024_requests_10s.csv.gz"))

    def load(service):
        rows = table.filter(pl.col("service") == service)
        start = datetime.fromisoformat(rows["time_utc"][0] + "+00:00").timestamp()
        counts = rows["requests"].to_numpy().astype(np.float64)[:-1]  # the last is half a bin
        key = SeriesKey(service, "azure", "IW-F")
        return DemandSeries(key, start, 10.0, counts, REQUESTS).resample(900.0)

    return load


def two_days(demand, method):
    """The last two days, an hour ahead, every hour."""
    return backtest(demand, lambda: forecaster(method), horizon_bins=4, origins=48)


def test_arima_beats_last_value_an_hour_ahead(azure):
    for service in ("conv", "code"):
        demand = azure(service)
        arima, last = two_days(demand, "arima"), two_days(demand, "last-value")
        assert arima.wape < last.wape
        assert arima.peak_wape < last.peak_wape


def test_arima_needs_no_weekday_like_the_last(azure):
    # conv's last day is a Saturday: yesterday misleads, and the model follows within hours
    demand = azure("conv")
    assert two_days(demand, "arima").wape < 0.5 * two_days(demand, "seasonal-naive").wape
