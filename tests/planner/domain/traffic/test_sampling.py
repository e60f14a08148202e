"""A log of one in n requests: its counts, arrivals, band and stated error."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forecasting.selection import forecaster
from planner.domain.traffic.series import trace_series
from planner.domain.traffic.sources import Sample, StoredTrace
from planner.domain.traffic.traffic import Traffic, build_traffic
from planner.inputs.ingest import IngestOptions, ingest_file
from planner.inputs.ingest.report import sampling_error
from planner.inputs.ingest.store import read_report
from tests.planner.domain import builders as make

HOURS = 48


def arrivals(per_hour: float = 2000.0, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.sort(rng.uniform(0, 3600 * HOURS, rng.poisson(per_hour * HOURS)))


def sampled(folder: Path, n: float, arrival_s: np.ndarray, seed: int = 1) -> StoredTrace:
    kept = arrival_s[np.random.default_rng(seed).random(len(arrival_s)) < 1 / n]
    rate = np.full(len(kept), 1 / n)
    stored = make.request_file(folder, kept, name=f"one-in-{n:g}", sample_rate=rate)
    return replace(stored, sample=read_report(stored.store).sample)


def traffic_of(stored: StoredTrace, **changes: object) -> Traffic:
    return build_traffic(make.traffic_settings(**changes), {"t": stored})


@pytest.mark.parametrize("n", [4.0, 100.0])
def test_demand_and_requests_are_those_of_all(tmp_path: Path, n: float) -> None:
    stored = sampled(tmp_path, n, arrivals())
    rows = read_report(stored.store).requests
    assert stored.sample == pytest.approx(n)
    traffic = traffic_of(stored, traffic__bin_s=900)
    assert len(traffic.measured) == pytest.approx(n * rows)
    assert np.nansum(traffic.demand.requests) == pytest.approx(n * rows, rel=0.03)
    (requests, *_) = trace_series(stored, 900.0)
    assert np.nansum(requests.values) == pytest.approx(n * rows, rel=0.03)


@pytest.mark.parametrize("n", [4.0, 100.0])
def test_copies_are_no_bursts(tmp_path: Path, n: float) -> None:
    trace = traffic_of(sampled(tmp_path, n, arrivals())).measured
    per_second = np.bincount(trace.arrival_s.astype(int))
    assert per_second.var() / per_second.mean() < 1.4


def test_the_stated_error_holds_nineteen_of_twenty_samples() -> None:
    rng, n, all_of_them = np.random.default_rng(5), 50.0, 40_000
    rows = rng.binomial(all_of_them, 1 / n, 2000)
    errors = np.array([sampling_error(float(k), n) for k in rows.tolist()])
    inside = np.abs(n * rows - all_of_them) <= errors * n * rows
    assert inside.mean() == pytest.approx(0.95, abs=0.015)


def test_the_error_rises_with_n_and_falls_with_rows() -> None:
    assert sampling_error(100, 1.0) == 0.0
    assert sampling_error(100, 2.0) < sampling_error(100, 50.0) < sampling_error(25, 50.0)


def test_the_answer_states_sample_and_error(tmp_path: Path) -> None:
    stored = sampled(tmp_path, 100.0, arrivals())
    (sample,) = traffic_of(stored).samples
    rows = read_report(stored.store).requests
    assert (sample.one_in, sample.rows) == (pytest.approx(100), rows)
    assert rows / HOURS < sample.busiest < 3 * rows / HOURS
    assert any("one in 100" in words for words in read_report(stored.store).assumptions)
    assert traffic_of(make.request_file(tmp_path, arrivals())).samples == ()


def test_the_forecast_band_of_a_sample_is_wider(tmp_path: Path) -> None:
    """The true rate is constant: the whole log has Poisson noise, the sample ten times as much."""
    whole = make.request_file(tmp_path, arrivals(4_000.0), name="whole")
    part = sampled(tmp_path, 100.0, arrivals(4_000.0))
    widths = []
    for stored in (whole, part):
        series = trace_series(stored, 3600.0)[0]
        forecast = forecaster("seasonal-naive", horizon_bins=6).fit(series).predict(6)
        low, high = forecast.quantiles[0], forecast.quantiles[-1]
        widths.append(float((high - low).mean()))
    assert widths[1] > 3 * widths[0]


def test_counts_may_be_sampled_too(tmp_path: Path) -> None:
    path = tmp_path / "counts.csv"
    path.write_text("time,requests,input_tokens\n" + "".join(
        f"2024-05-13T{h:02d}:00:00Z,{10 + h},{1000 + h}\n" for h in range(24)))  # fmt: skip
    options = IngestOptions(format="demand", amounts="counts", sample="20")
    report = ingest_file(path, tmp_path / "store", options)
    stored = StoredTrace("counts", "demand", report.clock, tmp_path / "store", report.sample)
    (requests, inputs, *_) = trace_series(stored, 3600.0)
    assert requests.values.tolist() == [20 * (10 + h) for h in range(24)]
    assert inputs.values.tolist() == [20 * (1000 + h) for h in range(24)]
    assert Sample.of(stored).rows == sum(10 + h for h in range(24))
    tokens = {"mean": 10}
    traffic = traffic_of(stored, traffic__sources=[make.source(output_tokens=tokens)])
    assert np.nansum(traffic.demand.requests) == 20 * sum(10 + h for h in range(24))


def test_rows_of_several_rates_count_by_their_mean(tmp_path: Path) -> None:
    rates = np.where(np.arange(200) % 2, 0.1, 0.05)
    stored = make.request_file(tmp_path, 10 * np.arange(200.0), sample_rate=rates)
    assert read_report(stored.store).sample == pytest.approx(15)
