"""Demand files: shapes, bin width, gaps, and rows that have no place on the grid."""

import json
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import Ambiguous, ColumnMissing, IngestError
from planner.inputs.ingest import IngestOptions, ingest_file, read_demand, read_requests

NAN = float("nan")


def values(store, field="requests"):
    return {series.name: getattr(series, field).tolist() for series in read_demand(store)}


def test_absent_bins_and_empty_cells_are_gaps_and_zeros_are_zeros(ingest, store):
    text = "time,requests\n0,5\n60,0\n120,\n180,NaN\n300,7\n"
    report = ingest(text)
    (series,) = report.series
    assert (report.kind, report.rows, report.rejected) == ("demand", 5, 0)
    assert (series.bins, series.gaps, series.requests, series.bin_s) == (6, 3, 12, 60)
    np.testing.assert_equal(values(store)["t"], [5, 0, NAN, NAN, NAN, 7])


def test_missing_zero_fills_absent_bins_but_not_empty_cells(ingest, store):
    report = ingest("time,requests\n0,5\n60,\n120,1\n300,7\n", missing="zero")
    np.testing.assert_equal(values(store)["t"], [5, NAN, 1, 0, 0, 7])
    assert report.series[0].gaps == 1


def test_series_by_column_and_by_labels(ingest, store):
    text = (
        "service,model,region,bin_start,requests,input_tokens,output_tokens\n"
        "chat,m1,eu,2024-01-01 00:00:00,1,10,2\n"
        "chat,m1,us,2024-01-01 00:00:00,2,20,4\n"
        "chat,m1,eu,2024-01-01 01:00:00,3,,6\n"
        "chat,m1,us,2024-01-01 01:00:00,4,40,8\n"
    )
    report = ingest(text, tier="IW-F")
    assert [s.name for s in report.series] == ["chat / m1 / eu", "chat / m1 / us"]
    assert (report.models, report.regions, report.tiers) == (("m1",), ("eu", "us"), ("IW-F",))
    assert (report.input_tokens, report.output_tokens, report.requests) == (70, 20, 10)
    eu, us = read_demand(store)
    assert (eu.model, eu.region, eu.tier, eu.bin_s) == ("m1", "eu", "IW-F", 3600)
    np.testing.assert_equal(eu.input_tokens, [10, NAN])
    assert us.input_tokens.tolist() == [20, 40] and us.total_tokens is None
    assert (report.start, report.end) == ("2024-01-01T00:00:00Z", "2024-01-01T02:00:00Z")


def test_wide_columns_are_series(ingest, store):
    text = "day,hour,chat_requests,api_requests,chat_input_tokens\n0,0,1,2,9\n0,1,3,4,8\n"
    report = ingest(text)
    assert values(store) == {"chat": [1, 3], "api": [2, 4]}
    assert read_demand(store)[0].input_tokens.tolist() == [9, 8]
    assert read_demand(store)[1].input_tokens is None
    assert report.columns["requests"] == "chat_requests,api_requests"
    assert report.columns["time"] == "day+hour"


def test_wide_columns_by_mapping(ingest, store):
    text = "stamp,a,b\n0,1,2\n1,3,4\n"
    ingest(text, mapping={"bin_start": "stamp:min", "requests": "a,b"})
    assert values(store) == {"a": [1, 3], "b": [2, 4]}
    assert read_demand(store)[0].bin_s == 60


def test_rates_are_multiplied_by_the_bin_width(ingest, store):
    report = ingest("t_s,rps\n0,0.5\n600,2\n")
    assert values(store) == {"t": [300, 1200]}
    assert "rps is per second; multiplied by the bin width." in report.notes
    ingest("t_s,x\n0,0.5\n600,2\n", mapping={"rate": "x"})
    assert values(store) == {"t": [300, 1200]}


def test_tokens_only(ingest, store):
    report = ingest("minute,tokens_per_s\n0,1\n1,2\n3,4\n")
    (series,) = read_demand(store)
    np.testing.assert_equal(series.total_tokens, [60, 120, NAN, 240])
    assert np.isnan(series.requests).all()
    assert report.requests is None and report.series[0].gaps == 1


def test_bin_width_is_the_usual_step_and_stragglers_are_refused(ingest, store):
    times = [*range(0, 3000, 10), 1005]
    report = ingest("t_s,requests\n" + "".join(f"{t},1\n" for t in times))
    assert report.bin_s == 10
    assert dict(report.reject_reasons) == {"time off the grid of 10 s bins": 1}
    (sample,) = report.reject_samples
    assert (sample.line, sample.text) == (len(times) + 1, "time_s=1005.0, requests=1.0")
    assert report.requests == 300 == report.rows - report.rejected


def test_bin_width_is_the_common_measure_when_steps_vary(ingest, store):
    report = ingest("t_s,requests\n" + "".join(f"{t},1\n" for t in (0, 20, 50, 70, 100)))
    assert (report.bin_s, report.rejected) == (10, 0)
    assert report.series[0].gaps == 6


def test_bin_width_can_be_given_and_must_fit(ingest):
    content = "t_s,requests\n0,1\n"
    with pytest.raises(IngestError, match="one time per series does not show the bin width"):
        ingest(content)
    assert ingest(content, bin_s=300.0).bin_s == 300
    assert ingest("t_s,requests\n0,1\n600,1\n", bin_s=300.0).series[0].gaps == 1
    with pytest.raises(IngestError, match="its times do not fall on bins of 7 s"):
        ingest("t_s,requests\n0,1\n10,1\n20,1\n", bin_s=7.0)


def test_unsorted_bins_find_their_place(ingest, store):
    ingest("t_s,requests\n20,3\n0,1\n10,2\n")
    assert values(store) == {"t": [1, 2, 3]}


def test_an_exact_repeat_is_refused_once_and_a_contradiction_refuses_the_file(ingest):
    report = ingest("t_s,requests\n0,1\n10,2\n10,2\n20,3\n")
    assert dict(report.reject_reasons) == {"bin repeated": 1}
    assert (report.requests, report.reject_samples[0].line) == (6, 4)
    with pytest.raises(IngestError, match="lines 3 and 4 give series t different requests for the"):
        ingest("t_s,requests\n0,1\n10,2\n10,5\n20,3\n")


def test_a_wide_row_off_the_grid_counts_once(ingest):
    times = [*range(0, 3000, 10), 1005]
    text = "t_s,a_requests,b_requests\n" + "".join(f"{t},1,2\n" for t in times)
    report = ingest(text)
    assert (report.rows, report.rejected, report.requests) == (301, 1, 900)


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("-1", "requests negative"),
        ("many", "requests not a number"),
        ("1e18", "requests above 1e+15"),
        ("inf", "requests above 1e+15"),
    ],
)
def test_bad_cells_refuse_their_row(ingest, cell, reason):
    report = ingest(f"t_s,requests\n0,1\n10,{cell}\n20,1\n30,1\n")
    assert dict(report.reject_reasons) == {reason: 1}
    assert report.series[0].gaps == 1
    with pytest.raises(IngestError, match=rf"t.csv, line 3: {reason[:17]}"):
        ingest(f"t_s,requests\n0,1\n10,{cell}\n20,1\n30,1\n", strict=True)


def test_a_grid_that_cannot_be_is_refused(ingest):
    text = "t_ns,requests\n0,1\n1,1\n900000000000000000,1\n"
    with pytest.raises(IngestError, match="would have 900,000,000,000,000,001 bins of 1e-09 s"):
        ingest(text, mapping={"time": "t_ns"})


@pytest.mark.parametrize("cell", ["", "NaN"])
def test_a_file_without_any_amount_is_refused(ingest, cell):
    with pytest.raises(IngestError, match="no row has a number in input_tokens or requests"):
        ingest(f"time,requests,input_tokens\n0,{cell},\n60,{cell},\n")


def test_each_reader_refuses_the_other_kind(ingest, store):
    ingest("t_s,requests\n0,1\n10,1\n")
    with pytest.raises(IngestError, match=r"t.csv holds demand per bin, not requests"):
        read_requests(store)
    ingest("time,input_tokens,output_tokens\n0,1,1\n")
    with pytest.raises(IngestError, match=r"t.csv holds requests, not demand per bin"):
        read_demand(store)


@settings(max_examples=6)  # of up to 40 series each
@given(st.randoms(use_true_random=False), st.sampled_from(["gap", "zero"]))
def test_each_of_many_series_is_as_if_it_stood_alone(random, missing):
    """Rows of series with different starts and lengths, in any order, some of them empty."""
    step, start = 300, 1_715_731_200
    cells = {}
    for name in range(random.randint(2, 40)):
        first = random.randrange(20)
        for place in sorted(random.sample(range(first, first + 30), random.randint(2, 12))):
            cells[f"m{name}", place] = random.choice([None, 0, random.randint(1, 99)])
    cells["m0", 100], cells["m0", 101] = 1, 2  # neighbours: they give the width
    rows = list(cells.items())
    random.shuffle(rows)
    table = pl.DataFrame(
        {
            "time": [start + step * place for (_, place), _ in rows],
            "model": [name for (name, _), _ in rows],
            "requests": pl.Series([amount for _, amount in rows], dtype=pl.Int64),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        path, store = Path(folder) / "t.parquet", Path(folder) / "store"
        table.write_parquet(path)
        options = IngestOptions(format="demand", missing=missing, bin_s=step)
        report = ingest_file(path, store, options)
        series = read_demand(store)
    assert [one.name for one in series] == list(dict.fromkeys(name for (name, _), _ in rows))
    for one, account in zip(series, report.series, strict=True):
        own = {place: amount for (name, place), amount in cells.items() if name == one.name}
        first, last = min(own), max(own)
        some = any(amount is not None for amount in own.values())
        absent = 0.0 if missing == "zero" and some else None
        expected = [own.get(place, absent) for place in range(first, last + 1)]
        assert one.start_s == start + step * first
        read = [None if np.isnan(amount) else amount for amount in one.requests.tolist()]
        assert read == expected
        known = [amount for amount in expected if amount is not None]
        assert account.requests == (sum(known) if known else None)
        assert (account.bins, account.gaps) == (len(expected), expected.count(None))
    amounts = [amount for amount in cells.values() if amount is not None]
    assert report.requests == sum(amounts)


def test_far_more_bins_than_rows_are_refused(ingest):
    """Three rows by the minute over 54 years would be 28 million bins."""
    rows = "1970-01-02 00:00,1\n1970-01-02 00:01,1\n2024-05-15 00:00,1\n"
    with pytest.raises(IngestError, match=r"series t would have .* bins .* Check the times"):
        ingest("time,requests\n" + rows, format="demand")


@given(st.sets(st.integers(1, 38), max_size=8), st.booleans())
def test_missing_readings_of_a_counter_lose_no_request(missed, empty_cells):
    upto = [i * i for i in range(40)]
    rows = [
        f"2025-06-02 00:{i:02d}:00,{'' if i in missed else upto[i]}\n"
        for i in range(40)
        if empty_cells or i not in missed
    ]
    with tempfile.TemporaryDirectory() as folder:
        path, store = Path(folder) / "t.csv", Path(folder) / "store"
        path.write_text("timestamp,requests_total\n" + "".join(rows))
        report = ingest_file(path, store)
        (series,) = read_demand(store)
    assert (report.requests, report.bin_s) == (upto[-1], 60)
    assert bool(missed) == ("missing_readings" in report.checks)
    assert not np.isnan(series.requests[1:]).any()
    for i in {*range(1, 40)} - missed - {i + 1 for i in missed}:
        assert series.requests[i] == upto[i] - upto[i - 1]


def _minutes(counts: dict[int, int]) -> str:
    return "time,requests\n" + "".join(f"{60 * i},{count}\n" for i, count in counts.items())


def test_scattered_absent_bins_are_asked_about(ingest):
    grouped = _minutes({i: 3 for i in range(300) if i % 10 != 4})
    with pytest.raises(Ambiguous) as asked:
        ingest(grouped)
    assert {(choice.option, choice.value) for choice in asked.value.choices} == {
        ("missing", "zero"), ("missing", "gap"),
    }  # fmt: skip
    (zero,), (gap,) = (ingest(grouped, missing=meant).series for meant in ("zero", "gap"))
    assert (zero.gaps, gap.gaps) == (0, 30)


def test_a_counter_without_a_reading_for_years_is_refused(ingest):
    values = [[178822400, "5"], [1748822700, "1"], [1748823000, "2"]]
    metric = {"__name__": "vllm:request_success_total", "model_name": "m"}
    result = [{"metric": metric, "values": values}]
    data = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    with pytest.raises(IngestError, match=r"49\.8 years"):
        ingest(json.dumps(data), "t.json")


@pytest.mark.parametrize(
    "counts",
    [
        {i: 3 for i in range(300) if not 100 <= i < 140},  # an outage
        {i: 3 * (i % 10 != 5) for i in range(300) if i % 10 != 4},  # zeros have rows
        {i: 3 for i in range(300) if i % 100 != 4},  # few bins
    ],
)
def test_absent_bins_that_are_hardly_zero_stay_unknown(ingest, counts):
    (series,) = ingest(_minutes(counts)).series
    assert series.gaps == 300 - len(counts)


def test_means_per_request_need_the_requests(ingest):
    bins = "time,input_tokens\n" + "".join(f"{60 * i},{100 + i}\n" for i in range(30))
    with pytest.raises(ColumnMissing):
        ingest(bins, format="demand", amounts="per_request")
