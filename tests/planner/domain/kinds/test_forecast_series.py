"""What follows a trace, and what is said of it first."""

import numpy as np
import pytest

from forecasting.demand import INPUT_TOKENS, REQUESTS, DemandSeries, SeriesKey
from forecasting.multi_series import backtest_long_series
from planner.domain.kinds.forecast import TraceOptions, run_series
from planner.domain.progress import silent

DAY = 100 + 80 * np.sin(np.arange(240) * 2 * np.pi / 24)


def row_of(values, **options):
    series = DemandSeries(SeriesKey("m", "east", "chat"), 0.0, 3600.0, values, REQUESTS)
    outcome = run_series([series], TraceOptions(**options), progress=silent)
    (row,) = outcome.document["series"]
    return row


def test_a_forecast_worse_than_naive_says_so() -> None:
    row = row_of(DAY, method="moving-maximum", origins=24, horizon_s=6 * 3600.0)
    assert "seasonal-naive" in row["note"]
    assert row["bias"] is not None and row["peak_p90"] >= row["peak"] * 0.5
    assert row_of(DAY, origins=24)["note"] == ""


def test_methods_are_compared_by_their_errors() -> None:
    noisy = DAY * np.random.default_rng(0).uniform(0.8, 1.2, 240)
    series = DemandSeries(SeriesKey("m", "east", "chat"), 0.0, 3600.0, noisy, REQUESTS)
    result = run_series([series], TraceOptions(horizon_s=86_400.0), progress=silent).document
    methods = result["methods"]
    (chosen,) = [row for row in methods if row["chosen"]]
    assert chosen["method"] == result["series"][0]["method"] and chosen["over_chosen"] == 1.0
    errors = {row["method"]: row["error"] for row in methods}
    assert list(errors.values()) == sorted(errors.values())
    assert errors["arima"] < errors["last-value"]
    (row,) = result["series"]
    others = {name: error for name, error in errors.items() if name != chosen["method"]}
    assert row["runner_up"] == min(others, key=others.__getitem__)
    assert row["runner_up_over"] == pytest.approx(others[row["runner_up"]] / chosen["error"])
    named = run_series([series], TraceOptions(method="arima"), progress=silent).document
    assert named["methods"] == [] and "harmonic" in named["series"][0]["order"]


def test_cleaned_bins_are_listed() -> None:
    values = np.full(120, 50.0)
    values[60:62], values[62] = 0.0, 160.0
    row = row_of(values)
    assert row["cleaned"].count("outage") == 3 and "160, backlog" in row["cleaned"]
    assert row["reason"] and row_of(values, method="last-value")["reason"] == ""


def test_series_forecast_together_are_each_as_if_alone() -> None:
    """Several units of a key, and one that begins later: same figures but for rounding (sums of
    more rows), in the order given."""
    key = SeriesKey("m", "east", "chat")
    noise = np.random.default_rng(1).uniform(0.8, 1.2, 240)
    series = [
        DemandSeries(key, 0.0, 3600.0, DAY * noise, REQUESTS),
        DemandSeries(key, 36 * 3600.0, 3600.0, DAY[36:], INPUT_TOKENS),
        DemandSeries(key, 0.0, 3600.0, 1000 * DAY, INPUT_TOKENS),
    ]
    options = TraceOptions(origins=6)

    def rows(of):
        forecast_rows = run_series(of, options, progress=silent).document["series"]
        return [{k: v for k, v in row.items() if k != "fit_seconds"} for row in forecast_rows]

    of_all = rows(series)
    for together, demand in zip(of_all, series, strict=True):
        (alone,) = rows([demand])
        for name, value in alone.items():
            near = isinstance(value, float | list)
            assert together[name] == (pytest.approx(value, rel=1e-9) if near else value), name
    assert [row["unit"] for row in of_all] == [REQUESTS, INPUT_TOKENS, INPUT_TOKENS]


def test_a_naive_method_that_one_series_is_too_short_for_is_held_against_the_others() -> None:
    key = SeriesKey("m", "east", "chat")
    blank = np.full(240, np.nan)
    series = [DemandSeries(key, 0.0, 3600.0, values, REQUESTS) for values in (blank, 100 * DAY)]
    tested = backtest_long_series(series, "seasonal-naive", 3600.0, 6)
    assert tested[0] is None and tested[1] is not None and tested[1].wape < 1e-12


def test_a_drift_is_flagged_with_when_it_began() -> None:
    values = np.random.default_rng(3).poisson(100.0, 336).astype(float)
    assert row_of(values)["drift"]["flagged"] is False
    values[320:] *= 2
    drift = row_of(values)["drift"]
    assert drift["flagged"] and drift["since"].startswith("1970-01-14T")  # hour 320 is 08:00
    assert "48" in drift["sentence"]  # windows


def test_what_it_would_have_been_at_any_past_moment_is_kept() -> None:
    """Last value: what came right before each moment, of each series and unit by itself."""
    key = SeriesKey("m", "east", "chat")
    series = [
        DemandSeries(key, 0.0, 3600.0, DAY, REQUESTS),
        DemandSeries(key, 0.0, 3600.0, 9 * DAY, INPUT_TOKENS),
    ]
    tables = run_series(series, TraceOptions(method="last-value"), progress=silent).tables
    moments, history = tables["moments"], tables["history"]
    assert moments["origin"].n_unique() == 48 and moments.height == 2 * 48 * 24
    for unit, times in ((REQUESTS, 1), (INPUT_TOKENS, 9)):
        first = moments.filter(unit=unit).group_by("origin").first().sort("origin")
        np.testing.assert_allclose(first["mean"], times * DAY[-49:-1] / 3600)
        assert history.filter(unit=unit)["actual"].max() == pytest.approx(times * DAY.max() / 3600)


@pytest.mark.parametrize(("idle", "reported"), [(0, 0), (12, 0), (24, 1), (72, 1)])
def test_demand_that_stopped_a_day_before_the_end_is_reported(idle: int, reported: int) -> None:
    values = DAY.copy()
    values[240 - idle :] = 0.0
    key = SeriesKey("m", "east", "chat")
    series = [DemandSeries(key, 0.0, 3600.0, values, unit) for unit in (REQUESTS, INPUT_TOKENS)]
    notes = run_series(series, TraceOptions(), progress=silent).document["notes"]
    assert sum(str(key) in note for note in notes) == reported
