"""Every known format, by hand-made rows and by the real files."""

import csv
import gzip
import json
from importlib.resources import files

import numpy as np
import polars as pl
import pytest

from planner.errors import Ambiguous, IngestError
from planner.inputs.ingest import IngestOptions, ingest_file, preview, read_demand, read_requests
from planner.inputs.ingest.connectors import CONNECTORS, read_connector

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize("name", CONNECTORS)
def test_the_example_of_every_connector_is_read_as_it_says(name, tmp_path, store):
    example = CONNECTORS[name].example
    path = tmp_path / example["file"]
    path.write_text(example["text"].lstrip(), encoding="utf-8")
    report = ingest_file(path, store, IngestOptions(**example.get("options", {})))
    assert report.format == name
    values = report.as_dict() | {
        "rows_rejected": report.rejected,
        "span_s": report.end_s - report.start_s,
        "functions": len(report.series),
        "model": "".join(report.models),
    }
    assert {key: values[key] for key in example["expect"]} == pytest.approx(example["expect"])


@pytest.mark.parametrize(
    ("right", "wrong", "place"),
    [
        ('unit = "ms"', 'unit = "usec"', "unit"),
        ("title =", "titel =", "titel"),
        ("[columns]", '[columns]\nhttp_status = "code"', "http_status"),
        ("[columns]", "[columns", "line"),
    ],
)
def test_a_wrong_connector_is_refused_by_its_file_and_key(right, wrong, place, tmp_path):
    path = tmp_path / "toy.toml"
    original = files("planner.inputs.ingest.connectors") / "mooncake.toml"
    path.write_text(original.read_text().replace(right, wrong, 1))
    with pytest.raises(ValueError, match=f"toy.toml.*{place}"):
        read_connector(path)


def test_burstgpt_counts_failed_requests_apart(ingest, store):
    report = ingest(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n"
    )
    assert (report.format, report.clock, report.rows) == ("burstgpt", "relative", 3)
    assert report.reject_reasons == {"failed request (0 response tokens)": 1}
    assert report.reject_samples[0].line == 3
    assert report.models == ("ChatGPT", "GPT-4")
    assert (report.start, report.end) == ("+5s", "+118s")
    columns = read_requests(store)
    assert [columns.models[code] for code in columns.model] == ["ChatGPT", "GPT-4"]
    assert columns.arrival_s.tolist() == [0.0, 113.0]
    assert columns.start_s == 5.0


def test_mooncake_keeps_hash_ids(ingest, store):
    rows = [
        {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]},
        {"timestamp": 1500, "input_length": 10, "output_length": 7, "hash_ids": [0]},
    ]
    report = ingest("".join(json.dumps(row) + "\n" for row in rows), "m.jsonl")
    assert (report.format, report.clock) == ("mooncake", "relative")
    assert read_requests(store).hash_ids is None
    columns = read_requests(store, ["arrival_s", "hash_ids"])
    assert columns.arrival_s.tolist() == [0.0, 1.5]
    assert columns.hash_ids.tolist() == [0, 1, 0]
    assert columns.hash_offsets.tolist() == [0, 2, 3]
    assert columns.input_tokens is None


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_any_csv_by_well_known_names(ingest, mark):
    rows = [["model", "created_at", "prompt_tokens", "completion_tokens", "zone", "priority"]]
    rows += [["m1", f"2024-01-0{d}T00:00:00Z", "10", "20", "eu", "high"] for d in (1, 2)]
    report = ingest("\r\n".join(mark.join(row) for row in rows) + "\r\n")
    assert report.format == "csv"
    assert (report.input_tokens, report.output_tokens) == (20, 40)
    assert (report.models, report.regions, report.tiers) == (("m1",), ("eu",), ("high",))
    assert report.columns["arrival"] == "created_at"


def test_any_csv_by_mapping(ingest):
    report = ingest(
        "when,a,b,c\n1,10,20,x\n2,11,21,y\n",
        mapping={"arrival": "when", "input_tokens": "a", "output_tokens": "b", "tier": "c"},
        model="m",
        region="r",
    )
    assert (report.format, report.rows, report.input_tokens) == ("csv", 2, 21)
    assert (report.models, report.regions, report.tiers) == (("m",), ("r",), ("x", "y"))


def test_fixed_label_sets_a_column_aside_and_says_so(ingest):
    report = ingest("time,input_tokens,output_tokens,model\n1,10,20,x\n", model="m")
    assert report.models == ("m",)
    assert "Column model is not used: every row is labelled m." in report.notes


def test_empty_labels_are_counted_and_kept_nameless(ingest, store):
    report = ingest("time,input_tokens,output_tokens,model\n1,10,20,x\n2,10,20,\n")
    assert report.without_model == 1
    columns = read_requests(store)
    assert [columns.models[code] for code in columns.model] == ["x", ""]


def test_generic_json_lines(ingest):
    report = ingest(
        '{"ts": 1, "prompt_tokens": 5, "completion_tokens": 6, "extra": {"a": [1]}}\n'
        '{"completion_tokens": 8, "prompt_tokens": 7, "ts": 2.5}\n',
        "g.jsonl",
    )
    assert (report.format, report.rows) == ("csv", 2)
    assert (report.input_tokens, report.output_tokens, report.end) == (12, 14, "+2.5s")


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
def test_parquet_with_typed_columns(ingest, store, tmp_path, ending):
    frame = pl.DataFrame(
        {
            "time": pl.Series([1_700_000_000_123_456_789, 1_700_000_001_000_000_000]).cast(
                pl.Datetime("ns", "UTC")
            ),
            "input_tokens": [3, 4],
            "output_tokens": [5.0, 6.0],
            "model": pl.Series(["a", "b"], dtype=pl.Categorical),
            "hash_ids": [[1, 2], [3]],
        }
    )
    frame.write_parquet(tmp_path / "plain")
    report = ingest((tmp_path / "plain").read_bytes(), f"t.parquet{ending}")
    assert (report.rows, report.input_tokens, report.output_tokens) == (2, 7, 11)
    assert report.start_ns == 1_700_000_000_123_456_789
    assert report.models == ("a", "b")
    assert read_requests(store, ["hash_ids"]).hash_ids.tolist() == [1, 2, 3]
    assert sorted(p.name for p in store.iterdir()) == ["meta.json", "requests"]


def test_content_wins_over_a_wrong_name(ingest, tmp_path):
    pl.DataFrame({"time": [1], "input_tokens": [1], "output_tokens": [1]}).write_parquet(
        tmp_path / "plain"
    )
    assert ingest((tmp_path / "plain").read_bytes(), "t.csv").rows == 1
    packed = gzip.compress((AZURE + "2024-05-10 00:00:00,1,1\n").encode())
    assert ingest(packed, "u.csv").format == "azure"


@pytest.mark.parametrize(
    ("name", "text"),
    [("calls.tsv", "time\tcalls\n0\t4\n3600\t2\n"), ("calls.txt", "time;calls\n0;4\n3600;2\n"),
     ("calls.ndjson.gz", '{"time": 0, "calls": 4}\n{"time": 3600, "calls": 2}\n')],
)  # fmt: skip
def test_tables_under_the_names_that_others_give_them(ingest, name, text):
    report = ingest(text, name)
    assert (report.format, report.requests) == ("demand", 6)


def test_the_upload_keeps_its_own_name(ingest):
    report = ingest(AZURE + "2024-05-10 00:00:00,1,1\n", "upload-1.tmp", name="week.csv")
    assert report.trace == "week.csv"
    assert "week.csv" in report.provenance


def test_real_azure_2023(shared, store):
    path = shared("azure2023_conv.csv.gz")
    report = ingest_file(path, store)
    with gzip.open(path, "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    assert (report.rows, report.rejected) == (19366, 0)
    assert report.start == "2023-11-16T18:15:46Z"
    assert report.input_tokens == sum(int(row["ContextTokens"]) for row in rows)
    assert report.output_tokens == sum(int(row["GeneratedTokens"]) for row in rows)
    columns = read_requests(store)
    assert columns.input_tokens.tolist() == [int(row["ContextTokens"]) for row in rows]
    assert columns.arrival_s[0] == 0.0 and (np.diff(columns.arrival_s) >= 0).all()


def test_real_azure_2024_bins(shared, store):
    report = ingest_file(shared("azure2024_requests_10s.csv.gz"), store)
    totals = {series.name: series.requests for series in report.series}
    assert totals == {"code": 16_803_695, "conv": 27_303_999}
    assert (report.kind, report.bin_s, report.rows) == ("demand", 10, 120_962)
    code, conv = read_demand(store)
    assert code.requests.sum() == 16_803_695 and code.requests.size == 60_481
    assert conv.start_s - code.start_s == 2 * 86_400


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("burstgpt_hourly.csv", {"conversation": 127_991, "api": 974_196}),
        ("azure2024_hourly_tokens.csv", {"code": 16_803_695, "conv": 27_303_882}),
        ("alibaba_gentd26_hourly.csv", {"alibaba_gentd26_hourly": 26_793}),
        ("burstgpt_daily.csv", {"burstgpt_daily": 1_102_187}),
    ],
)
def test_real_demand_files(shared, store, name, expected):
    report = ingest_file(shared(name), store)
    assert {series.name: series.requests for series in report.series} == expected
    assert report.rejected == 0


def test_real_rates_become_requests_and_zeros_stay_zero(shared, store):
    path = shared("servegen_total_rates_10min.csv")
    report = ingest_file(path, store)
    rows = list(csv.DictReader(path.open()))
    mid = [float(row["rate_rps"]) * 600 for row in rows if row["model"] == "m-mid"]
    series = next(candidate for candidate in read_demand(store) if candidate.model == "m-mid")
    np.testing.assert_allclose(series.requests, mid)
    assert (series.requests == 0).sum() == 84
    assert report.bin_s == 600 and not any(series_report.gaps for series_report in report.series)


def test_real_minutes_without_a_row_are_gaps_unless_zero_is_meant(shared, store):
    path = shared("burstgpt_week1_minute_tokens.csv")
    with pytest.raises(Ambiguous):
        ingest_file(path, store)
    (gaps,) = ingest_file(path, store, IngestOptions(missing="gap")).series
    (series,) = read_demand(store)
    assert (gaps.bins, gaps.gaps, gaps.requests) == (10_080, 10_080 - 6_366, None)
    rows = list(csv.DictReader(path.open()))
    total = sum(float(row["tokens_per_s"]) for row in rows) * 60
    assert np.nansum(series.total_tokens) == pytest.approx(total)
    (zeros,) = ingest_file(path, store, IngestOptions(missing="zero")).series
    (series,) = read_demand(store)
    assert zeros.gaps == 0 and series.total_tokens.sum() == pytest.approx(total)
    assert np.isnan(series.requests).all()


def test_real_mooncake(shared, store):
    path = shared("mooncake_conversation.jsonl.gz")
    report = ingest_file(path, store)
    with gzip.open(path, "rt") as file:
        rows = [json.loads(line) for line in file]
    assert (report.rows, report.rejected, report.format) == (12_031, 0, "mooncake")
    assert report.input_tokens == sum(row["input_length"] for row in rows)
    columns = read_requests(store, ["hash_ids"])
    assert columns.hash_ids.tolist() == [i for row in rows for i in row["hash_ids"]]


def test_real_clients_in_parquet(shared, store):
    path = shared("servegen_mm-image_clients_10min.parquet")
    report = ingest_file(path, store)
    frame = pl.read_parquet(path)
    assert len(report.series) == frame["client"].n_unique()
    assert report.requests == pytest.approx(frame["rate_rps"].cast(pl.Float64).sum() * 600)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("vidur_arxiv_summarization_lengths.csv.gz", "arrival"),
        ("servegen_token_stats_6h.csv.gz", "arrival"),
    ],
)
def test_real_files_without_times_are_refused(shared, store, name, field):
    with pytest.raises(ValueError, match=f"{name} has no column known to hold {field}"):
        ingest_file(shared(name), store)
    assert not store.exists()


@pytest.mark.parametrize(
    "header",
    ["ts,prompt_len,completion_len", "t,isl,osl", "arrival_time_sec,inTokens,outTokens",
     "request_timestamp,promptTokenCount,candidatesTokenCount", "sentAt,prefill_len,decode_len",
     "received_at,n_prompt,n_completion", "arrived_at,num_prefill_tokens,num_decode_tokens"],
)  # fmt: skip
def test_names_that_others_use_are_known(ingest, header):
    report = ingest(f"{header}\n0,10,1\n1,20,2\n")
    assert (report.requests, report.input_tokens, report.output_tokens) == (2, 30, 3)


def test_a_preview_shows_the_first_rows_and_what_is_known(tmp_path):
    path = tmp_path / "kept"
    path.write_text("when,prompt_len,answer,model\n" + "1,5,,m\n" * 50)
    seen = preview(path, "odd.csv")
    assert seen.columns == ("when", "prompt_len", "answer", "model")
    assert seen.rows == (("1", "5", "", "m"),) * 6
    assert seen.field_of_column == {"prompt_len": "input_tokens", "model": "model"}
    counts = tmp_path / "counts"
    counts.write_text("hour,requests,foo\n1,2,3\n")
    assert preview(counts, "c.csv").field_of_column == {"requests": "requests"}


def test_fields_within_an_object_are_columns(ingest, store):
    rows = [
        {"time": "2026-10-05T00:00:00Z", "request": {"model": "a"}, "usage": {"prompt_tokens": 71,
         "completion_tokens": 18, "details": {"cached": 3}}},
        {"time": "2026-10-05T00:00:02Z", "request": {"model": "b"}, "usage": None},
        {"time": "2026-10-05T00:00:03Z", "usage": {"prompt_tokens": 5, "completion_tokens": 2}},
    ]  # fmt: skip
    report = ingest("".join(json.dumps(row) + "\n" for row in rows), "gateway.jsonl.gz")
    assert report.columns["input_tokens"] == "usage.prompt_tokens"
    assert (report.requests, report.input_tokens, report.output_tokens) == (2, 76, 20)
    assert report.models == ("a",)  # the third names none
    assert report.reject_reasons == {"input tokens missing or NaN": 1}
    assert read_requests(store).arrival_s.tolist() == [0.0, 3.0]


def test_a_flat_name_with_a_dot_is_itself(ingest):
    line = json.dumps({"ts": 1, "usage.prompt_tokens": 9, "usage": {"prompt_tokens": 7}, "osl": 2})
    assert ingest(line + "\n", "d.jsonl").input_tokens == 9


def test_requests_without_lengths_of_answers_are_counted_only_when_said(ingest, store):
    rows = [(1_791_158_405_000, 100), (1_791_158_409_000, 300), (1_791_158_431_000, 50)]
    content = "ts_ms,prompt_tokens\n" + "".join(f"{t},{n}\n" for t, n in rows)
    with pytest.raises(IngestError, match=r"hold output_tokens. .* as format arrivals"):
        ingest(content)
    report = ingest(content, format="arrivals")
    assert (report.kind, report.requests, report.bin_s) == ("demand", 3, 10)
    assert (report.input_tokens, report.output_tokens) == (450, None)
    assert "The file has no output lengths" in report.notes[-1]
    (series,) = read_demand(store)
    assert series.requests.tolist() == [2, 0, 0, 1]  # from 00:00:00 on, by 10 s
    assert series.input_tokens.tolist() == [400, 0, 0, 50]
    assert sorted(series.input_lengths.tolist()) == [50, 100, 300]


def test_day_first_with_dots(ingest):
    report = ingest("ts;in_tokens;out_tokens\n31.12.2026 23:00:01;5;6\n01.01.2027 00:30;7;8\n")
    assert (report.start, report.end) == ("2026-12-31T23:00:01Z", "2027-01-01T00:30:00Z")
