"""A series that grows: by hand, and the laws of merging."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from planner.errors import DamagedFile, IngestError, SourceError
from planner.inputs.ingest import read_demand, read_report
from planner.inputs.live.publication import publish, sample_of
from planner.inputs.live.samples import (
    HISTOGRAMS,
    MOST_SAMPLES,
    Samples,
    bins_frame,
    no_histograms,
    samples_of_rows,
)
from planner.inputs.live.series_store import MOST_PARTS, GrowingSeries

NOW = datetime(2026, 5, 1, tzinfo=UTC)
T0 = int(datetime(2026, 4, 1, tzinfo=UTC).timestamp())
INF = float("inf")


def histogram(minute):
    where = {"model": "m", "region": "", "tier": "", "bin_start": T0 + 60 * minute, "origin": ""}
    counted = {"what": "input_tokens", "least": 0.0, "most": 8.0, "count": 5.0}
    return pl.DataFrame([where | counted], schema=HISTOGRAMS)


def reading(*rows, bin_s=60, histograms=None):
    return Samples(
        bin_s, bins_frame(list(rows)), no_histograms() if histograms is None else histograms
    )


def row(minute, requests, model="m", **more):
    return {"model": model, "bin_start": T0 + 60 * minute, "requests": requests, **more}


def test_the_same_bin_read_twice_counts_once_and_late_data_is_merged(tmp_path):
    series = GrowingSeries(tmp_path, 60)
    series.append(reading(row(0, 5.0, input_tokens=50.0), row(1, 7.0), row(2, None)))
    series.append(reading(row(1, 7.0), row(2, 3.0)))  # once more, and what came late
    series.append(reading(row(0, 6.0)))  # a correction, which says nothing of tokens
    series.append(reading(row(1, None)))  # a reading that knows nothing takes nothing away
    bins = series.read().bins
    assert bins["requests"].to_list() == [6.0, 7.0, 3.0]
    assert bins["input_tokens"].to_list() == [50.0, None, None]


def test_parts_from_before_a_column_was_kept_are_read(tmp_path):
    series = GrowingSeries(tmp_path, 60)
    series.append(reading(row(0, 5.0)))
    (old,) = tmp_path.glob("bins-*.parquet")
    pl.read_parquet(old).drop("tbt_mean_s").write_parquet(old)
    series.append(reading(row(1, 7.0, tbt_mean_s=0.02)))
    assert series.read().bins["tbt_mean_s"].to_list() == [None, 0.02]


@pytest.mark.parametrize("kind", ["bins", "histograms"])
def test_a_part_that_is_spoilt_is_a_sentence_and_readings_go_on(tmp_path, kind):
    series = GrowingSeries(tmp_path, 60)
    series.append(reading(row(0, 5.0), histograms=histogram(0)))
    (part,) = tmp_path.glob(f"{kind}-*.parquet")
    part.write_bytes(part.read_bytes()[:-9])
    for minute in range(1, MOST_PARTS + 3):  # beyond which parts would be joined
        series.append(reading(row(minute, 7.0)))
    with pytest.raises(DamagedFile, match=f"{kind}-.* is damaged .*; restore a backup, or"):
        series.read()
    part.unlink()  # what a hand may do who knows
    assert series.read().bins["requests"].to_list()[-1] == 7.0


def test_parts_of_an_earlier_version_are_read_in_their_order(tmp_path):
    series = GrowingSeries(tmp_path, 60)
    for requests in (5.0, 6.0):
        series.append(reading(row(0, requests), histograms=histogram(0)))
    before = series.read()
    for path in tmp_path.iterdir():  # with length and checksum in their names
        path.rename(tmp_path / f"{path.stem}.1234-0f0f0f0f.parquet")
    assert series.read().bins.equals(before.bins)
    assert series.read().histograms.equals(before.histograms)
    series.append(reading(row(0, 7.0)))
    assert series.read().bins["requests"].to_list() == [7.0]


def test_many_parts_become_one_and_say_the_same(tmp_path):
    series, expected = GrowingSeries(tmp_path, 60), {}
    rng = np.random.default_rng(7)
    for _ in range(MOST_PARTS + 3):
        minute, requests = int(rng.integers(20)), float(rng.integers(100))
        expected[minute] = requests
        series.append(reading(row(minute, requests)))
    assert len(list(tmp_path.glob("bins-*.parquet"))) < 5
    grown = {
        (start - T0) // 60: n
        for start, n in series.read().bins.select("bin_start", "requests").rows()
    }
    assert grown == expected


def test_files_that_meet_within_a_bin_add_up_and_a_lone_part_of_one_is_a_gap(tmp_path):
    series = GrowingSeries(tmp_path, 60)
    part = {"whole": False}
    series.append(reading(row(0, 9.0, origin="a"), row(1, 4.0, origin="a", **part)))
    series.append(reading(row(1, 2.0, origin="b", **part), row(2, 1.0, origin="b", **part)))
    assert series.read().bins["requests"].to_list() == [9.0, 6.0, None]


def test_only_what_was_known_by_a_moment_is_read(tmp_path):
    series = GrowingSeries(tmp_path, 60)
    series.append(reading(*(row(m, float(m)) for m in range(10))))
    assert series.read(until_s=T0 + 5 * 60 - 1).bins.height == 4  # a bin counts once it is over
    assert series.read(since_s=T0 + 60, until_s=T0 + 5 * 60).bins["requests"].sum() == 10.0


def test_a_published_series_has_gaps_where_nothing_was_measured(tmp_path):
    histograms = pl.DataFrame(
        {
            "model": "m", "region": "", "tier": "", "bin_start": T0, "origin": "",
            "what": "input_tokens", "least": [0.0, 10.0, 100.0], "most": [10.0, 100.0, INF],
            "count": [1.0, 8.0, 1.0],
        }
    )  # fmt: skip
    series = GrowingSeries(tmp_path / "live", 60)
    series.append(
        reading(
            row(0, 5.0, input_tokens=50.0, output_tokens=2.0),
            row(3, 1.0, input_tokens=9.0, output_tokens=8.0),
            row(1, 4.0, model="other", input_tokens=40.0, output_tokens=40.0),
            {"bin_start": T0, "power_w": 700.0},  # of no model: no demand
            histograms=histograms,
        )
    )
    report = publish(series.read(), "chat", tmp_path / "store")
    assert read_report(tmp_path / "store") == report
    m, other = read_demand(tmp_path / "store")
    assert (m.model, m.start_s, m.bin_s) == ("m", T0, 60.0)
    np.testing.assert_array_equal(m.requests, [5.0, np.nan, np.nan, 1.0])
    np.testing.assert_array_equal(other.requests, [np.nan, 4.0, np.nan, np.nan])
    assert m.output_tokens is not None and m.output_tokens[0] == 5.0  # one for each request
    assert m.input_lengths is not None and other.input_lengths is None
    assert 10 < np.median(m.input_lengths) < 100
    assert report.requests == 10 and report.series[0].gaps == 2
    assert any("5 of 8 bins were not measured" in note for note in report.notes)
    with pytest.raises(IngestError, match="no request or token yet"):
        publish(reading(row(0, None)), "chat", tmp_path / "none")
    assert not (tmp_path / "none.partial").exists()


def test_a_histogram_read_back():
    bounds = {"least": [0.0, 1.0, 10.0, 100.0], "most": [1.0, 10.0, 100.0, INF]}
    table = pl.DataFrame({**bounds, "count": [0.0, 50.0, 50.0, 0.0]})
    sample = sample_of(table)
    assert sample is not None
    assert np.mean(sample <= 10) == 0.5 and sample.min() > 1 and sample.max() < 100
    grown_sample = sample_of(table.with_columns(count=pl.Series([0.0, 0.0, 100.0, 0.0])))
    assert grown_sample is not None and np.median(grown_sample) == pytest.approx(10**1.5, 1e-2)
    past = sample_of(table.with_columns(count=pl.Series([0.0, 0.0, 0.0, 3.0])))
    assert past is not None and set(past.round(9)) == {100.0}
    assert np.quantile(sample, 0.25) == pytest.approx(10**0.5, 1e-2)
    assert sample_of(table.clear()) is None


def test_samples_that_are_sent():
    start = datetime(2026, 4, 1, tzinfo=UTC)
    rows = [
        {"time": start, "model": "m", "requests": 3, "ttft": {"0.5": 2, "+Inf": 1}},
        {"time": start + timedelta(minutes=1), "model": "m", "requests": 0},
    ]
    samples = samples_of_rows(rows, 60, NOW)
    assert samples.requests == 3 and samples.span == (T0, T0 + 120)
    assert samples.histograms.select("what", "most", "count").rows() == [
        ("ttft_s", 0.5, 2),
        ("ttft_s", INF, 1),
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"time": datetime(2026, 4, 1, 0, 0, 30, tzinfo=UTC)}, r"samples\[0\].time: .* 60 s"),
        ({"time": NOW + timedelta(days=3)}, "not in the past"),
        ({"requests": None}, "this bin is empty"),
        ({"requests": -1.0}, r"samples\[0\].requests: give a number from 0"),
        ({"requests": float("nan")}, r"samples\[0\].requests: give a number"),
        ({"ttft": {"much": 1.0}}, r"samples\[0\].ttft: much: 1.0 is no bucket"),
    ],
)
def test_samples_that_are_refused(change, says):
    good = {"time": datetime(2026, 4, 1, tzinfo=UTC), "requests": 1.0}
    with pytest.raises(SourceError, match=says):
        samples_of_rows([good | change], 60, NOW)


def test_too_many_samples_and_a_bin_twice():
    good = {"time": datetime(2026, 4, 1, tzinfo=UTC), "requests": 1.0}
    with pytest.raises(SourceError, match="in the message twice"):
        samples_of_rows([good, good], 60, NOW)
    with pytest.raises(SourceError, match="at a time"):
        samples_of_rows([good] * (MOST_SAMPLES + 1), 60, NOW)
