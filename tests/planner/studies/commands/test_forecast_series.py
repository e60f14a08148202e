"""What follows a trace, and what is said of it first."""

import numpy as np

from forecasting.demand import REQUESTS, DemandSeries, SeriesKey
from planner.studies.commands.forecast import TraceOptions, run_series
from planner.studies.progress import silent


def told(values, **options):
    series = DemandSeries(SeriesKey("m", "east", "chat"), 0.0, 3600.0, values, REQUESTS)
    found = run_series([series], TraceOptions(**options), progress=silent)
    (row,) = found.document["series"]
    return row


def test_a_forecast_worse_than_naive_says_so() -> None:
    day = 100 + 80 * np.sin(np.arange(240) * 2 * np.pi / 24)
    row = told(day, method="moving-maximum", origins=24, horizon_s=6 * 3600.0)
    assert row["note"].startswith("Worse than seasonal-naive: peaks were off by")
    assert row["bias"] is not None and row["peak_p90"] >= row["peak"] * 0.5
    assert told(day, origins=24)["note"] == ""


def test_cleaned_bins_are_listed() -> None:
    values = np.full(120, 50.0)
    values[60:62], values[62] = 0.0, 160.0
    row = told(values)
    assert row["cleaned"].count("outage") == 3 and "160, backlog" in row["cleaned"]
    assert row["reason"] and told(values, method="last-value")["reason"] == ""
