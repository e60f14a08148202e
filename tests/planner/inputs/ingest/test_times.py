"""Arrival times as they come: text, numbers, offsets, units, order."""

import json
from datetime import UTC, datetime

import numpy as np
import pytest

from planner.inputs.ingest import read_requests
from planner.inputs.ingest.log_lines import log_rows

HEAD = "time,input_tokens,output_tokens\n"


def rows(*times: str) -> str:
    return HEAD + "".join(f"{time},1,1\n" for time in times)


@pytest.mark.parametrize(
    "text",
    [
        "2024-05-10 13:45:07",
        "2024-05-10T13:45:07",
        "2024/05/10 13:45:07",
        "2024-05-10T13:45:07.000",
        "2024-05-10 13:45:07.0000000",
        "2024-05-10T13:45:07Z",
        "2024-05-10 13:45:07 UTC",
        "2024-05-10 13:45:07+00:00",
        "2024-05-10T15:45:07+02:00",
        "2024-05-10T15:45:07+0200",
        "2024-05-10 15:45:07+02",
        "2024-05-10 08:15:07-05:30",
        '"May 10, 2024 1:45:07 PM"',
        '"Friday, May 10, 2024 01:45:07 PM"',
        "Fri May 10 13:45:07 UTC 2024",
        "Fri May 10 2024 15:45:07 GMT+0200 (Central European Summer Time)",
        "2024-131T13:45:07Z",
        "2024年05月10日 13:45:07",
        "1715348707",
        "1715348707.0",
        "1715348707000",
        "1715348707000000",
        "1715348707000000000",
    ],
)
def test_one_instant_many_spellings(ingest, text):
    report = ingest(rows(text))
    assert report.clock == "utc"
    assert report.start_ns == int(datetime(2024, 5, 10, 13, 45, 7, tzinfo=UTC).timestamp()) * 10**9
    assert report.start == "2024-05-10T13:45:07Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-05-10 13:45", "2024-05-10T13:45:00Z"),
        ("2024-05-10", "2024-05-10T00:00:00Z"),
        ("2024-W19-5", "2024-05-10T00:00:00Z"),
        ("2024-W19", "2024-05-06T00:00:00Z"),
        ("05/30/24 13:45", "2024-05-30T13:45:00Z"),
    ],
)
def test_coarser_text(ingest, text, expected):
    assert ingest(rows(text)).start == expected


def test_mixed_spellings_in_one_file(ingest):
    report = ingest(rows("2024-05-10", "2024-05-10T00:00:01", "2024-05-10 00:00:02.5"))
    assert (report.rows, report.rejected) == (3, 0)
    assert report.end_ns - report.start_ns == 2_500_000_000


@pytest.mark.parametrize(
    ("column", "mapped", "value", "seconds"),
    [
        ("t_s", "t_s", "90", 90.0),
        ("t_ms", "t_ms", "90", 0.09),
        ("minute", "minute", "3", 180.0),
        ("hour_index", "hour_index", "2", 7200.0),
        ("x", "x", "1.25", 1.25),
        ("x", "x:ms", "1.25", 0.00125),
        ("t_s", "t_s:h", "1.5", 5400.0),
        ("x:ms", "x:ms", "7", 0.007),
    ],
)
def test_units_of_plain_numbers(ingest, column, mapped, value, seconds):
    text = f"{column},input_tokens,output_tokens\n0,1,1\n{value},1,1\n"
    report = ingest(text, mapping={"arrival": mapped})
    assert report.clock == "relative"
    assert report.end_ns == round(seconds * 1e9)
    assert "Times have no calendar" in report.notes[0]


def test_times_from_several_columns(ingest):
    text = "day,hour,input_tokens,output_tokens\n0,23,1,1\n1,1,1,1\n"
    report = ingest(text, mapping={"arrival": "day+hour"})
    assert (report.start, report.end) == ("+82800s", "+90000s")


def test_epoch_nanoseconds_are_exact(ingest):
    report = ingest(rows("1715348707123456789", "1715348707123456790"))
    assert (report.start_ns, report.end_ns) == (1715348707123456789, 1715348707123456790)


def test_relative_times_before_the_origin_are_refused(ingest):
    report = ingest(rows("0", "5", "-1"))
    assert dict(report.reject_reasons) == {"time negative": 1}


def test_numbers_out_of_range_are_refused(ingest):
    report = ingest(rows("0", "5", "1e300", "inf", "soon"))
    assert dict(report.reject_reasons) == {
        "time outside 1970 to 2261": 1,
        "time not understood": 2,
    }


def test_several_offsets_are_converted_and_noted(ingest, store):
    report = ingest(rows("2024-01-01 00:00:00+00:00", "2024-01-01 03:00:01+02:00"))
    assert report.rejected == 0
    assert read_requests(store).arrival_s.tolist() == [0.0, 3601.0]
    assert any("2 offsets (+00:00, +02:00)" in note for note in report.notes)


def test_rows_without_offset_in_a_file_with_offsets_are_refused(ingest):
    aware = "2024-01-01 00:00:00+00:00"
    report = ingest(rows(aware, aware, "2024-01-01 00:00:05", "2024-01-01 00:00:05+99:00", ""))
    assert dict(report.reject_reasons) == {
        "time without an offset in a file with offsets": 1,
        "time not understood": 1,
        "time missing": 1,
    }


def test_unsorted_rows_are_sorted_stably_and_it_is_said(ingest, store):
    text = HEAD + "5,1,1\n3,2,1\n5,3,1\n9,4,1\n3,5,1\n4,6,1\n"
    report = ingest(text)
    columns = read_requests(store)
    assert columns.input_tokens.tolist() == [2, 5, 6, 1, 3, 4]
    assert columns.arrival_s.tolist() == [0, 0, 1, 2, 2, 6]
    assert columns.start_s == 3.0
    assert "Sorted 3 rows that arrived before a row above them." in report.notes
    assert not any("Sorted" in note for note in ingest(rows("1", "1", "2")).notes)
    assert np.all(np.diff(read_requests(store).arrival_s) >= 0)


@pytest.mark.parametrize(
    ("finished", "arrival"),
    [
        ("2026-05-11 08:00:02", "2026-05-11T08:00:00.500000"),
        ("2026-05-11 08:00:02.25", "2026-05-11T08:00:00.750000"),
        ("2026-05-11T08:00:02.500Z", "2026-05-11T08:00:01.000000Z"),
    ],
)
def test_a_log_line_arrived_when_it_finished_less_what_it_took(finished, arrival):
    pattern = r"^(?P<finished>\S+(?: \d\S+)?) took (?P<took_s>\S+)$"
    line = f"{finished} took 1.5\n".encode()
    (rows,) = log_rows([line], pattern, "a.log", len(line))
    assert json.loads(rows)["arrival"] == arrival
