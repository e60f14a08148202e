"""Rows that are refused: each by its own reason, counted, with its line; the rest are kept."""

import numpy as np
import polars as pl
import pytest

from planner.inputs.ingest import read_requests

HEAD = "time,input_tokens,output_tokens\n"
GOOD = "2024-01-01 00:00:00,10,20\n"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("2024-01-01 00:00:01,10", "wrong number of fields"),
        ("2024-01-01 00:00:01,10,20,30", "wrong number of fields"),
        ('2024-01-01 00:00:01,1"0,2"0', "double quote inside a field"),
        (",10,20", "time missing"),
        ("NaN,10,20", "time missing"),
        ("yesterday,10,20", "time not understood"),
        ("2024-02-30 00:00:00,10,20", "time not understood"),
        ("1700000000,10,20", "time not understood"),
        ("1969-12-31 23:59:59,10,20", "time outside 1970 to 2261"),
        ("9999-01-01 00:00:00,10,20", "time outside 1970 to 2261"),
        ("2024-01-01 00:00:00+02:00,10,20", "time with an offset in a file without offsets"),
        ("2024-01-01 00:00:01,,20", "input tokens missing or NaN"),
        ("2024-01-01 00:00:01,NaN,20", "input tokens missing or NaN"),
        ("2024-01-01 00:00:01,10,null", "output tokens missing or NaN"),
        ("2024-01-01 00:00:01,ten,20", "input tokens not a number"),
        ('2024-01-01 00:00:01,"1,0x",20', "input tokens not a number"),
        ("2024-01-01 00:00:01,10.5,20", "input tokens not a whole number"),
        ("2024-01-01 00:00:01,-3,20", "input tokens negative"),
        ("2024-01-01 00:00:01,10,-0.5", "output tokens negative"),
        ("2024-01-01 00:00:01,0,20", "input tokens zero"),
        ("2024-01-01 00:00:01,10000001,20", "input tokens above 10,000,000"),
        ("2024-01-01 00:00:01,10,99999999999999999999", "output tokens above 10,000,000"),
        ("2024-01-01 00:00:01,inf,20", "input tokens above 10,000,000"),
        ("2024-01-01 00:00:01,-inf,20", "input tokens negative"),
    ],
)
def test_a_bad_row_is_set_apart_by_its_reason(ingest, row, reason):
    report = ingest(HEAD + GOOD + row + "\n" + GOOD)
    assert (report.rows, report.requests, report.rejected) == (3, 2, 1)
    assert dict(report.reject_reasons) == {reason: 1}
    (sample,) = report.reject_samples
    assert (sample.line, sample.reason, sample.text) == (3, reason, row)
    assert (report.input_tokens, report.output_tokens) == (20, 40)


@pytest.mark.parametrize("tokens", ["10", "10.0", " 10 ", "+10", "1e1", '"10"'])
def test_whole_numbers_in_any_dress_are_accepted(ingest, tokens):
    report = ingest(f"{HEAD}2024-01-01 00:00:00,{tokens},{tokens}\n{GOOD}")
    assert (report.rejected, report.input_tokens, report.output_tokens) == (0, 20, 30)


def test_a_row_with_several_faults_counts_once(ingest):
    report = ingest(HEAD + GOOD + "never,-1,0\n" + "2024-01-01 00:00:00,-1,0\n")
    assert dict(report.reject_reasons) == {"time not understood": 1, "input tokens negative": 1}
    assert report.rejected == 2


@pytest.mark.parametrize("returns", ["\r\r\n", "\r\r\r\r\n"])
def test_a_line_of_carriage_returns_has_the_wrong_number_of_fields(ingest, returns):
    report = ingest(HEAD + returns + GOOD)
    assert dict(report.reject_reasons) == {"wrong number of fields": 1}


def test_only_the_first_few_of_each_reason_are_shown_cut_to_80(ingest):
    long = "2024-01-01 00:00:00," + "x" * 200 + ",1\n"
    report = ingest(HEAD + GOOD + long * 10 + GOOD.replace("10", "-1") * 5)
    assert [s.line for s in report.reject_samples] == [3, 4, 5, 13, 14, 15]
    assert max(len(s.text) for s in report.reject_samples) == 80
    assert dict(report.reject_reasons) == {
        "input tokens not a number": 10,
        "input tokens negative": 5,
    }


def test_line_numbers_count_blank_lines_and_quoted_line_ends(ingest, store):
    text = (
        "time,input_tokens,output_tokens,model\r\n"
        '1,2,3,"two\nlines, one ""name"""\r\n'
        "\r\n"
        "2,-2,3,m\r\n"
        "\r\n"
        "3,2,3,m"
    )
    report = ingest("\ufeff" + text)
    assert (report.rows, report.requests) == (3, 2)
    assert [s.line for s in report.reject_samples] == [5]
    assert read_requests(store).models == ('two\nlines, one "name"', "m")


def test_json_lines_that_are_not_objects(ingest):
    good = '{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [1]}\n'
    bad = good.replace("[1]", '["a"]')
    report = ingest(
        good + "nonsense\n\n[1, 2]\n" + bad + good.replace("6", "NaN") + good.replace("6", "1e999"),
        "m.jsonl",
    )
    assert dict(report.reject_reasons) == {
        "not a JSON object": 4,
        "hash_ids not a list of whole numbers": 1,
    }
    assert [s.line for s in report.reject_samples] == [2, 4, 5, 6]
    assert (report.rows, report.requests) == (6, 1)


@pytest.mark.parametrize(
    "ids", ["[1, null]", "[1.5]", "[true]", "7", '"a"', "[99999999999999999999]"]
)
def test_ids_that_are_none_are_refused_but_may_be_absent(ingest, store, ids):
    good = '{"timestamp": 0, "input_length": 6, "output_length": 5, "hash_ids": [1]}\n'
    lines = [good, good.replace("[1]", ids), good.replace("[1]", "null"), good.replace("[1]", "[]")]
    report = ingest("".join([*lines, good]), "m.jsonl")
    assert dict(report.reject_reasons) == {"hash_ids not a list of whole numbers": 1}
    columns = read_requests(store, ["hash_ids"])
    assert columns.hash_ids.tolist() == [1, 1] and columns.hash_ids.dtype == np.int64
    assert columns.hash_offsets.tolist() == [0, 1, 1, 1, 2]


def test_ids_in_parquet(ingest, store, tmp_path):
    frame = pl.DataFrame({"time": [1, 2, 3], "input_tokens": 1, "output_tokens": 1})
    frame.with_columns(hash_ids=pl.Series([[1], [2, None], None])).write_parquet(tmp_path / "p")
    report = ingest((tmp_path / "p").read_bytes(), "t.parquet")
    assert dict(report.reject_reasons) == {"hash_ids not a list of whole numbers": 1}
    assert report.reject_samples[0].line == 2 and report.rows == 3
    assert read_requests(store, ["hash_ids"]).hash_ids.tolist() == [1]


def test_json_values_of_the_wrong_kind(ingest):
    lines = [
        '{"time": 1, "input_tokens": 2, "output_tokens": 3}',
        '{"time": 2, "input_tokens": null, "output_tokens": 3}',
        '{"time": 3, "input_tokens": true, "output_tokens": 3}',
        '{"time": 4, "input_tokens": 2}',
        '{"time": 5, "input_tokens": [2], "output_tokens": 3}',
    ]
    report = ingest("\n".join(lines), "g.jsonl")
    assert dict(report.reject_reasons) == {
        "input tokens not a number": 2,
        "input tokens missing or NaN": 1,
        "output tokens missing or NaN": 1,
    }


def test_limit_on_tokens_can_be_set(ingest):
    report = ingest(HEAD + GOOD + GOOD.replace(",20", ",21"), max_tokens=20)
    assert dict(report.reject_reasons) == {"output tokens above 20": 1}
