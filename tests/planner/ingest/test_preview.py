"""The first look at a file: what a form shows before anything is read."""

from __future__ import annotations

import gzip

import polars as pl
import pytest

from planner.errors import IngestError
from planner.ingest import IngestOptions, ingest_file, preview


def test_a_known_format_needs_no_mapping(tmp_path):
    path = tmp_path / "upload"
    path.write_bytes(gzip.compress(b"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01,1,2\n"))
    seen = preview(path, "week.csv.gz")
    assert (seen.format, seen.kind, seen.problem) == ("azure", "requests", "")
    assert seen.rows == (("2024-01-01", "1", "2"),)
    assert seen.mapping == {
        "arrival": "TIMESTAMP",
        "input_tokens": "ContextTokens",
        "output_tokens": "GeneratedTokens",
    }


def test_a_missing_field_is_a_problem_not_a_refusal(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("when,a,b\n" + "1,2,3\n" * 50)
    seen = preview(path, rows=5)
    assert seen.columns == ("when", "a", "b") and len(seen.rows) == 5
    assert seen.mapping == {} and "no column known to hold arrival" in seen.problem
    mapping = {"arrival": "when", "input_tokens": "a", "output_tokens": "b"}
    assert preview(path, options=IngestOptions(mapping=mapping)).problem == ""


def test_the_suggested_mapping_reads_the_file_the_same(tmp_path, shared):
    path = shared("burstgpt_hourly.csv")
    seen = preview(path)
    assert seen.kind == "demand"
    assert seen.mapping == {"time": "day+hour", "requests": "conversation_requests,api_requests"}
    plain = ingest_file(path, tmp_path / "a")
    mapped = ingest_file(path, tmp_path / "b", IngestOptions(mapping=seen.mapping))
    assert plain.series == mapped.series


def test_parquet_and_json_lines(tmp_path):
    path = tmp_path / "t.parquet"
    pl.DataFrame(
        {"time": [1], "requests": [None]}, schema={"time": int, "requests": int}
    ).write_parquet(path)
    assert preview(path).rows == (("1", ""),)
    assert preview(path).format == "demand"
    lines = tmp_path / "t.jsonl"
    lines.write_text('{"timestamp": 1, "input_length": 2, "output_length": 3}\nnot json\n')
    assert preview(lines).format == "mooncake" and preview(lines).rows == (("1", "2", "3"),)


def test_what_is_no_table_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\x00\x00")
    with pytest.raises(IngestError, match="binary"):
        preview(path)
