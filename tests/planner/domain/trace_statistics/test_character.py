"""What is said of a trace: against closed forms, by hand, and on real files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from planner.domain.trace_statistics.cache import (
    stored_character,
    stored_rates,
    stored_total,
    write_character,
)
from planner.domain.trace_statistics.figures import QUANTILE_LEVELS, UNLABELLED, Character
from planner.domain.trace_statistics.grid import base_width
from planner.domain.trace_statistics.periodicity import autocorrelation, burstiness, rhythm
from planner.domain.trace_statistics.statistics import characterise, length_distribution
from planner.domain.trace_statistics.volumes import MAX_CHART_INTERVALS
from planner.inputs.ingest import IngestOptions, ingest_file, read_report
from tests.shared_folder import TRACES, shared

DAY = 86_400
MAY = 1_714_521_600  # 1 May 2024, a Wednesday

Build = Callable[..., Path]


@pytest.fixture
def stored(tmp_path: Path) -> Build:
    """A table written as Parquet and read into a store."""

    def build(table: pl.DataFrame, **options: str) -> Path:
        path, store = tmp_path / "t.parquet", tmp_path / "store"
        table.write_parquet(path)
        ingest_file(path, store, IngestOptions(**options))  # type: ignore[arg-type]
        return store

    return build


def of(store: Path) -> Character:
    return characterise(store).character


def requests(arrival: np.ndarray, **columns: object) -> pl.DataFrame:
    """Requests at ``arrival`` seconds; 100 tokens in and 10 out unless said."""
    rows = {"arrival": arrival, "input_tokens": [100] * len(arrival)}
    return pl.DataFrame(rows | {"output_tokens": [10] * len(arrival)} | columns)


@pytest.mark.parametrize("seed", range(3))
def test_quantiles_are_those_of_the_requests_themselves(seed: int) -> None:
    tokens = np.random.default_rng(seed).lognormal(6, 1.3, 4999).astype(int) + 1
    values, count = np.unique(tokens, return_counts=True)
    lengths = length_distribution(
        "input_tokens", "all", "all", values.astype(float), count.astype(float)
    )
    for level, quantile in zip(QUANTILE_LEVELS, lengths.quantiles, strict=True):
        assert quantile == np.quantile(tokens, level, method="inverted_cdf")


def test_cells_are_the_largest_of_model_region_and_tier(stored: Build) -> None:
    models, regions = ["a"] * 6 + ["b"] * 2, ["east", "west"] * 4
    cells = of(stored(requests(np.arange(8.0), model=models, region=regions))).cells
    assert [(c.model, c.region, c.tier, c.amount) for c in cells[:2]] == [
        ("a", "east", UNLABELLED, 3),
        ("a", "west", UNLABELLED, 3),
    ]
    assert sum(cell.share for cell in cells) == pytest.approx(1)


def test_utility_is_summed_where_the_file_gives_it(stored: Build) -> None:
    table = requests(
        np.arange(4.0), tier=["fast", "fast", "batch", "batch"], utility=["3", "1", "0.5", "none"]
    )
    store = stored(table)
    character = of(store)
    assert (character.total.utility, character.total.utility_per_request) == (4.5, 1.5)
    per_request = {volume.label: volume.utility_per_request for volume in character.volumes}
    assert per_request == {"fast": 2, "batch": 0.5}
    assert "1 requests have no utility (column utility)." in read_report(store).notes
    assert of(stored(requests(np.arange(4.0)))).total.utility is None


def test_poisson_arrivals_have_a_dispersion_of_one_at_every_scale(stored: Build) -> None:
    rng = np.random.default_rng(3)
    arrival = np.sort(rng.uniform(0, 4 * 3600, 40_000))
    character = of(stored(requests(arrival)))
    assert character.interarrival_cv == pytest.approx(1, abs=0.02)
    by_scale = {bursts.bin_s: bursts for bursts in character.burstiness}
    assert set(by_scale) == {1, 10, 60, 600}
    assert by_scale[1].dispersion == pytest.approx(1, abs=0.05)
    assert by_scale[10].dispersion == pytest.approx(1, abs=0.15)
    for scale in (1, 10, 60):
        assert by_scale[scale].within_10_min == pytest.approx(1, abs=0.2)
    assert by_scale[1].empty == pytest.approx(np.exp(-40_000 / 14_400), rel=0.1)


def test_a_daily_cycle_is_no_burst_within_ten_minutes() -> None:
    rng = np.random.default_rng(4)
    rate = 20 * (1 + 0.9 * np.sin(2 * np.pi * np.arange(2 * DAY) / DAY))
    by_scale = {bursts.bin_s: bursts for bursts in burstiness(rng.poisson(rate).astype(float), 1.0)}
    assert by_scale[10].dispersion > 50
    assert by_scale[10].within_10_min == pytest.approx(1, abs=0.1)


def test_regular_arrivals_have_no_dispersion_and_batches_their_size() -> None:
    (second, *_) = burstiness(np.full(7200, 5.0), 1.0)
    assert second.dispersion == 0 and second.peak_to_mean == 1
    rng = np.random.default_rng(5)
    (batches, *_) = burstiness(8.0 * rng.poisson(2.0, 50_000), 1.0)
    assert batches.dispersion == pytest.approx(8, rel=0.05)  # compound Poisson: E[B^2] / E[B]


def test_autocorrelation_of_known_series() -> None:
    hours = np.arange(14 * 24)
    daily = 10 + np.sin(2 * np.pi * hours / 24)
    assert autocorrelation(daily, 24) == pytest.approx(1)
    assert autocorrelation(daily, 12) == pytest.approx(-1)
    noise = np.random.default_rng(6).normal(size=200_000)
    assert autocorrelation(noise, 24) == pytest.approx(0, abs=0.01)
    ar = np.zeros(200_000)
    for i in range(1, len(ar)):
        ar[i] = 0.9 * ar[i - 1] + noise[i]
    assert autocorrelation(ar, 3) == pytest.approx(0.9**3, abs=0.02)
    assert autocorrelation(daily[:40], 24) is None  # not two days
    assert autocorrelation(np.ones(400), 24) is None
    daily[50:60] = np.nan
    assert autocorrelation(daily, 24) == pytest.approx(1)


def test_hours_and_weekdays_are_those_of_the_calendar() -> None:
    values = np.zeros(14 * 24)
    values[[9, 9 + 7 * 24]] = 3600.0  # Wednesdays at nine
    calendar = rhythm(values, MAY, 3600.0, "utc")
    assert calendar.weekday_hour[2][9] == 1.0
    assert sum(rate or 0 for day in calendar.weekday_hour for rate in day) == 1.0
    assert calendar.hour[9] == pytest.approx(2 / 14) and calendar.peak_hour == 9
    assert calendar.weekend_to_weekday == 0
    origin = rhythm(values, 0.0, 3600.0, "relative")
    assert origin.weekday_hour[0][9] == 1.0 and origin.weekend_to_weekday is None
    assert rhythm(np.ones(30), MAY, 7200.0, "utc").hour == (None,) * 24


def demand(per_bin: np.ndarray, bin_s: int, **more: object) -> pl.DataFrame:
    times = MAY + bin_s * np.arange(len(per_bin))
    return pl.DataFrame({"time": times, "requests": per_bin, **more})


def test_days_are_ranked_and_an_outage_is_no_quiet_day(stored: Build) -> None:
    rng = np.random.default_rng(7)
    per_bin = rng.poisson(np.repeat([400.0, 900.0, 500.0, 300.0], 96)).astype(float)
    per_bin[3 * 96 - 10 : 3 * 96 - 2] = 0  # two hours of the third day
    character = of(stored(demand(per_bin, 900)))
    assert [day.rank for day in character.days.days] == [3, 1, 2, 4]
    assert character.days.busiest_day is not None
    assert character.days.busiest_day.start_s == MAY + DAY
    assert "4 May 2024" in character.days.words[0] and "2 May 2024" in character.days.words[0]
    (outage,) = character.outages
    assert (outage.series, outage.bins, outage.start_s) == ("all", 8, MAY + (3 * 96 - 10) * 900)
    assert outage.missing == pytest.approx(8 * 500, rel=0.2)
    assert character.total.requests == per_bin.sum()


def test_one_series_outage_makes_the_total_unknown_where_it_mattered(stored: Build) -> None:
    rng = np.random.default_rng(8)
    large, small = rng.poisson(2000.0, 960).astype(float), rng.poisson(60.0, 960).astype(float)
    large[300:306] = small[600:606] = 0
    table = demand(np.concatenate([large, small]), 900).with_columns(
        time=pl.Series(np.tile(MAY + 900 * np.arange(960), 2)),
        model=pl.Series(["large"] * 960 + ["small"] * 960),
    )
    store = stored(table)
    character = of(store)
    assert [(lost.series, lost.bins) for lost in character.outages] == [("large", 6), ("small", 6)]
    write_character(store)
    rates = stored_rates(store, "all")
    assert rates["requests"].null_count() == 3  # two bins each are joined in the chart
    assert stored_total(store).gaps == 0  # as the file has it


def test_means_of_series_with_other_dates_add_up_to_that_of_all(stored: Build) -> None:
    hours = np.r_[np.arange(48), 24 + np.arange(48)]
    table = demand(np.repeat([3600.0, 7200.0], 48), 3600).with_columns(
        time=pl.Series(MAY + 3600 * hours), model=pl.Series(["early"] * 48 + ["late"] * 48)
    )
    character = of(stored(table))
    means = {volume.label: volume.mean for volume in character.volumes}
    assert means["early"] == pytest.approx(1 * 48 / 72) and means["late"] == pytest.approx(96 / 72)
    assert character.total.mean == pytest.approx(means["early"] + means["late"])


def test_a_file_of_counts_has_means_and_says_what_it_has_not(stored: Build) -> None:
    table = demand(np.full(48, 10.0), 3600, input_tokens=np.full(48, 5000.0))
    character = of(stored(table))
    (lengths,) = character.lengths
    assert (lengths.mean, lengths.p95, lengths.quantiles) == (500, None, ())
    assert character.notes
    bare = of(stored(demand(np.full(48, 10.0), 3600)))
    assert not bare.lengths and bare.notes != character.notes


def test_a_file_of_tokens_is_ranked_by_tokens(stored: Build) -> None:
    table = demand(np.zeros(72), 3600).select(
        "time", total_tokens=pl.Series(np.repeat([1.0, 2.0, 3.0], 24))
    )
    character = of(stored(table))
    assert character.unit == "total_tokens" and character.total.requests is None
    assert character.days.days[-1].rank == 1


def test_charts_hold_every_request_in_few_enough_points(stored: Build) -> None:
    rng = np.random.default_rng(9)
    arrival = np.sort(rng.uniform(0, 3 * DAY, 20_000))
    table = requests(arrival, model=rng.choice([f"m{i}" for i in range(9)], 20_000))
    store = stored(table)
    rates = stored_rates(store, "model")
    labels = rates.sort("place")["label"].unique(maintain_order=True).to_list()
    assert len(labels) == 6 and labels[-1] == "4 others"
    assert rates["requests"].sum() == pytest.approx(20_000)
    assert rates.height <= 6 * MAX_CHART_INTERVALS
    total = stored_rates(store, "all")
    assert total["requests"].sum() == pytest.approx(20_000)
    assert total["seconds"].sum() == stored_total(store).bins * base_width(3 * DAY)


def test_a_daily_cycle_is_the_same_on_each_day_of_a_chart(stored: Build) -> None:
    days, hours = 420, np.arange(24)
    store = stored(demand(np.tile(100 + 10 * hours, days), 3600))
    rates = stored_rates(store, "all")
    widths = rates["seconds"].unique().to_list()
    assert rates.height <= MAX_CHART_INTERVALS and all(DAY % s == 0 or s % DAY == 0 for s in widths)
    assert np.ptp(rates["requests"].to_numpy()) == 0


def test_it_is_computed_once(stored: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    store = stored(requests(np.arange(100.0)))
    first = stored_character(store)
    monkeypatch.setattr("planner.domain.trace_statistics.cache.characterise", None)
    assert stored_character(store) == first
    assert first["total"]["requests"] == 100


def test_one_request_is_a_trace(stored: Build) -> None:
    character = of(stored(requests(np.array([5.0]))))
    assert character.total.requests == 1 and character.interarrival_cv is None
    assert character.lengths[0].p99 == 100


def test_the_published_figures_of_azure(tmp_path: Path) -> None:
    """Its README: 5.53 requests a second, CV of gaps 1.09; input 1155 / 1020 / 4142 / 14,050."""
    ingest_file(shared(TRACES / "azure2023_conv.csv.gz"), tmp_path / "store", IngestOptions())
    character = of(tmp_path / "store")
    assert character.total.mean == pytest.approx(5.53, abs=0.01)
    assert character.interarrival_cv == pytest.approx(1.09, abs=0.005)
    isl, osl = character.lengths
    assert (round(isl.mean), isl.p50, isl.p99, isl.most) == (1155, 1020, 4142, 14_050)
    assert (round(osl.mean), osl.p50, osl.p99, osl.most) == (211, 129, 601, 1000)


def test_the_published_rhythm_of_burstgpt(tmp_path: Path) -> None:
    """Its README: conversation 0.77 at a day and a week, API 0.05 at a day."""
    ingest_file(shared(TRACES / "burstgpt_hourly.csv"), tmp_path / "store", IngestOptions())
    by_series = {volume.label: volume for volume in of(tmp_path / "store").volumes}
    assert by_series["conversation"].autocorrelation_day == pytest.approx(0.77, abs=0.03)
    assert by_series["api"].autocorrelation_day == pytest.approx(0.05, abs=0.01)
