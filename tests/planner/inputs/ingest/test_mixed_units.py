"""Times in two units in one column refuse the file, with both readings of the number."""

import io
import json
from itertools import permutations

import polars as pl
import pytest

from planner.errors import IngestError

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
START = 1_715_731_200  # 15 May 2024
PAIRS = list(permutations(PER_SECOND, 2))


def numbers(unit, other, count=50, strange=30):
    return [(START + i) * PER_SECOND[other if i == strange else unit] for i in range(count)]


def written(times, kind, column="arrival"):
    """A file of requests at these times, and its name."""
    rows = [{column: time, "input_tokens": 5, "output_tokens": 7} for time in times]
    if kind == "parquet":
        out = io.BytesIO()
        pl.DataFrame(rows).write_parquet(out)
        return out.getvalue(), "t.parquet"
    if kind == "jsonl":
        return "\n".join(json.dumps(row) for row in rows), "t.jsonl"
    return pl.DataFrame(rows).write_csv(), "t.csv"


@pytest.mark.parametrize(
    ("kind", "unit", "other"),
    [*(("csv", *pair) for pair in PAIRS), ("jsonl", "s", "ms"), ("parquet", "us", "s")],
)
def test_both_readings_are_given(ingest, kind, unit, other):
    times = numbers(unit, other)
    content, file = written(times, kind)
    with pytest.raises(IngestError) as refused:
        ingest(content, file)
    message = str(refused.value)
    line = {"csv": "line 32", "jsonl": "line 31", "parquet": "row 31"}[kind]
    assert message.startswith(f"{file}, {line}: column arrival")
    assert str(times[30]) in message
    assert f"in {WORDS[unit]}" in message and f"in {WORDS[other]}" in message
    assert "2024-05-15T00:00:30Z" in message


def test_however_the_file_is_cut(ingest):
    """The row lies far beyond those that the unit is told from."""
    content, file = written(numbers("s", "ms", 40_000, 39_000), "csv")
    for chunk_bytes in (10_000, 10_000_000):
        with pytest.raises(IngestError, match="line 39002"):
            ingest(content, file, chunk_bytes=chunk_bytes)


def test_of_the_first_rows_too(ingest, store):
    """What the audit found: three rows became a trace from 1970 to 2024."""
    for times in ((START, (START + 1) * 1000, START + 2), (START * 1000, START + 1, START * 1000)):
        with pytest.raises(IngestError, match="mixes units"):
            ingest(*written(times, "csv"))
        assert not store.exists()


@pytest.mark.parametrize("unit", PER_SECOND)
def test_a_unit_that_the_caller_states_is_checked_too(ingest, unit):
    other = "ms" if unit == "s" else "s"
    content, file = written(numbers(unit, other), "csv", "when")
    with pytest.raises(IngestError, match="mixes units"):
        ingest(content, file, mapping={"arrival": f"when:{unit}"})


def test_epoch_times_among_times_from_the_start(ingest):
    for strange in (START, START * 1000):
        with pytest.raises(IngestError, match="2024-05-15"):
            ingest(*written([0, 1, 2, strange], "csv"))


def test_demand_files_too(ingest):
    rows = [f"{(START + 60 * i) * (1000 if i == 7 else 1)},{i}" for i in range(20)]
    with pytest.raises(IngestError, match=r"line 9: column time mixes units"):
        ingest("time,requests\n" + "\n".join(rows), format="demand")


@pytest.mark.parametrize(
    "times",
    [
        [0, 1, 2_000_000_000],  # ms from the start: 23 days
        [START - 700_000_000, START],  # 2002 and 2024
        [START + 0.5, START + 1.25, float(START + 2)],
    ],
)
def test_one_unit_is_read(ingest, times):
    unit = "ms" if times[0] == 0 else "s"
    report = ingest(*written(times, "csv"), mapping={"arrival": f"arrival:{unit}"})
    assert (report.rows, report.rejected) == (len(times), 0)


def test_a_number_that_no_unit_explains_refuses_its_row_alone(ingest):
    report = ingest(*written([START, START + 1, 5 * 10**10], "csv"))
    assert (report.rows, report.rejected) == (3, 1)
