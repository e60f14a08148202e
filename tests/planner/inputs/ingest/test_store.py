"""What is kept and how it is read back: arrays, bins, the report, out-of-core order."""

import hashlib
import json

import numpy as np
import polars as pl
import pytest

from planner.errors import IngestError
from planner.inputs.ingest import (
    IngestOptions,
    bin_requests,
    ingest_file,
    read_report,
    read_requests,
    sha256_file,
)
from planner.inputs.ingest.ordering import SortedPart, merge_in_order, part_path

HEAD = "time,input_tokens,output_tokens,model,tier\n"


def test_report_round_trip_and_json(ingest, store, tmp_path):
    report = ingest(HEAD + "1,2,3,a,x\n2,0,3,b,y\n")
    assert read_report(store) == report
    again = json.loads(json.dumps(report.as_dict()))
    fields = "trace rows requests rejected reject_reasons start end input_tokens output_tokens"
    assert {*fields.split(), "series", "seconds"} <= set(again)
    assert again["reject_samples"] == [[3, "input tokens zero", "2,0,3,b,y"]]
    assert report.sha256 == sha256_file(tmp_path / "t.csv")
    assert report.sha256 == hashlib.sha256((tmp_path / "t.csv").read_bytes()).hexdigest()
    assert report.bytes == (tmp_path / "t.csv").stat().st_size


def test_hash_is_of_the_file_as_it_lies_on_disk(ingest, tmp_path):
    for name in ("t.csv.gz", "t.csv.zst"):
        assert ingest(HEAD + "1,2,3,a,x\n", name).sha256 == sha256_file(tmp_path / name)


def test_columns_are_lazy_typed_and_read_only(ingest, store):
    ingest(HEAD + "1,2,3,a,x\n2,4,5,b,x\n")
    some = read_requests(store, ["input_tokens", "model"])
    assert some.arrival_s is None and some.tier is None
    assert some.input_tokens.dtype == np.int32 and some.model.dtype == np.int16
    assert not some.input_tokens.flags.writeable and not some.model.flags.writeable
    everything = read_requests(store)
    assert everything.arrival_s.dtype == np.float64
    assert everything.tier.tolist() == [0, 0] and everything.tiers == ("x",)
    assert everything.regions == ("",) and everything.region.tolist() == [0, 0]
    with pytest.raises(IngestError, match="have no column colour"):
        read_requests(store, ["colour"])


def test_an_incomplete_store_is_named(tmp_path):
    with pytest.raises(IngestError, match=r"not complete \(no meta.json\)"):
        read_requests(tmp_path)


def test_bins_by_hand(ingest, store, monkeypatch):
    ingest(
        HEAD.replace("time", "t_s")
        + "65,1,10,a,x\n119.999999999,2,20,a,x\n120,4,40,a,x\n130,8,80,b,x\n305,16,160,a,x\n"
    )
    a, b = bin_requests(store, 60)
    assert (a.model, b.model, a.tier, a.region, a.name) == ("a", "b", "x", None, "a / x")
    assert a.start_s == b.start_s == 60.0
    assert a.requests.tolist() == [2, 1, 0, 0, 1]
    assert a.input_tokens.tolist() == [3, 4, 0, 0, 16]
    assert b.output_tokens.tolist() == [0, 80, 0, 0, 0]
    with pytest.raises(IngestError, match=r"bin width must be at least 0.001 s"):
        bin_requests(store, 0)
    monkeypatch.setattr("planner.inputs.ingest.store.MAX_BINS", 9)
    with pytest.raises(IngestError, match="Choose a larger bin width"):
        bin_requests(store, 60)


def test_bins_agree_with_arrays(shared, store):
    ingest_file(shared("azure2023_conv.csv.gz"), store, IngestOptions(chunk_bytes=100_000))
    columns = read_requests(store)
    (series,) = bin_requests(store, 300)
    edges = series.start_s - columns.start_s + 300.0 * np.arange(series.requests.size + 1)
    assert series.start_s % 300 == 0
    assert series.requests.tolist() == np.histogram(columns.arrival_s, edges)[0].tolist()
    assert series.input_tokens.sum() == columns.input_tokens.sum()


@pytest.mark.parametrize("parts", [1, 5])
def test_out_of_core_sort_is_the_in_memory_sort(tmp_path, parts):
    rng = np.random.default_rng(3)
    arrival = np.round(rng.uniform(-5.0, 100.0, 60_000), 2)  # many ties
    frame = pl.DataFrame({"arrival_s": arrival, "row": np.arange(arrival.size)})
    step = arrival.size // parts
    written = [
        SortedPart.write(
            frame[i * step : (i + 1) * step].sort("arrival_s", maintain_order=True), tmp_path, i
        )
        for i in range(parts)
    ]
    ranges: list[int] = []
    merge_in_order(
        written,
        tmp_path,
        float(arrival.min()),
        on_range=lambda: ranges.append(1),
        range_rows=9_000,
    )
    paths = sorted(tmp_path.iterdir())
    assert paths == [part_path(tmp_path, i) for i in range(len(paths))]
    assert len(paths) == len(ranges) > 3
    got = pl.read_parquet(paths)
    order = np.argsort(arrival, kind="stable")
    assert got["row"].to_numpy().tolist() == order.tolist()
    np.testing.assert_allclose(got["arrival_s"].to_numpy(), arrival[order] - arrival.min())


def test_parts_in_order_are_left_alone(tmp_path):
    frame = pl.DataFrame({"arrival_s": [0.0, 1.0]})
    parts = [SortedPart.write(frame + i, tmp_path, i) for i in range(3)]
    before = [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())]
    merge_in_order(parts, tmp_path, 0.0, on_range=list)
    assert [path.stat().st_mtime_ns for path in sorted(tmp_path.iterdir())] == before


def test_progress_runs_from_above_0_to_1(tmp_path, store):
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "1,2,3,a,x\n" * 5000)
    fractions: list[float] = []
    ingest_file(path, store, IngestOptions(chunk_bytes=10_000), progress=fractions.append)
    assert fractions == sorted(fractions) and fractions[-1] == 1.0 and 0 < fractions[0] <= 1


def test_ingesting_again_replaces_the_trace(ingest, store):
    ingest(HEAD + "1,2,3,a,x\n" * 3)
    ingest("t_s,requests\n0,1\n10,1\n")
    assert sorted(p.name for p in store.iterdir()) == ["demand.parquet", "meta.json"]
