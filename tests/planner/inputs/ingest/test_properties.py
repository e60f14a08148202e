"""Laws that hold for any file: rows and tokens are conserved, and neither the size of a chunk nor
the packing of a file changes what is read."""

import gzip
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.errors import IngestError
from planner.inputs.ingest import (
    IngestOptions,
    IngestReport,
    ingest_file,
    read_demand,
    read_requests,
)

HEAD = "time,input_tokens,output_tokens,model\n"
TIME = st.integers(0, 50).map(str) | st.sampled_from(["", "-1", "x", "7.5", "nan"])
TOKENS = st.integers(1, 99).map(str) | st.sampled_from(["0", "-4", "", "2.0", "2.5", "9" * 12])
LABEL = st.sampled_from(["a", "b", "", '"c,d"', '"two\nlines"', '"say ""so"""', "é"])
ROW = st.tuples(TIME, TOKENS, TOKENS, LABEL).map(",".join)
LINE = ROW | ROW | ROW | st.sampled_from(["", "1,2", "1,2,3,a,5", '1,"2"3,4,a'])
END = st.sampled_from(["\n", "\r\n"])


def read(
    data: bytes, chunk: int, name: str = "t.csv", where: str | None = None
) -> tuple[IngestReport, list[list[object]]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        store = Path(folder) / "store"
        options = IngestOptions(chunk_bytes=chunk, missing="gap", where=where)
        report = ingest_file(path, store, options)
        if report.kind == "demand":
            arrays = [series.requests for series in read_demand(store)]
        else:
            requests = read_requests(store)
            arrays = [requests.arrival_s, requests.input_tokens, requests.output_tokens]
            arrays.append(np.array([requests.models[code] for code in requests.model]))
        return replace(report, seconds=0.0), [array.tolist() for array in arrays]


def outcome(data: bytes, chunk: int) -> object:
    try:
        return read(data, chunk)
    except IngestError as error:
        return str(error)


@given(lines=st.lists(LINE, min_size=1, max_size=25), end=END, chunk=st.integers(1, 200))
def test_chunk_size_never_changes_the_result(lines, end, chunk):
    data = (HEAD + "0,1,1,a\n" + end.join(lines)).encode()
    assert outcome(data, chunk) == outcome(data, 1 << 20)


@given(rows=st.lists(st.tuples(TIME, TOKENS, TOKENS, LABEL), min_size=1, max_size=25))
def test_rows_and_tokens_are_conserved(rows):
    rows = [("0", "1", "1", "a"), *rows]
    report, arrays = read((HEAD + "\n".join(map(",".join, rows))).encode(), 64, where="all")
    good = [
        (float(time), float(prompt), float(made))
        for time, prompt, made, _ in rows
        if _number(time) >= 0 and _is_tokens(prompt) and _is_tokens(made, least=0)
    ]
    assert report.rows == len(rows)
    assert report.rows == report.requests + report.rejected
    assert report.rejected == sum(report.reject_reasons.values())
    assert report.requests == len(good) == len(arrays[0])
    assert report.input_tokens == sum(prompt for _, prompt, _ in good) == sum(arrays[1])
    assert report.output_tokens == sum(made for _, _, made in good) == sum(arrays[2])
    assert report.end_ns - report.start_ns == round((max(good)[0] - min(good)[0]) * 1e9)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return -1.0 if np.isnan(value) else value


def _is_tokens(text: str, least: int = 1) -> bool:
    value = _number(text)
    return least <= value <= 10_000_000 and value == int(value)


@settings(max_examples=15)
@given(
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=60),
    chunk=st.integers(1, 300),
    members=st.integers(1, 3),
)
def test_plain_gzip_and_zstd_are_the_same_trace(rows, chunk, members):
    data = (HEAD + "".join(f"{time},{size},1,a\n" for time, size in rows)).encode()
    cuts = np.linspace(0, len(data), members + 1).astype(int)
    pieces = [data[a:b] for a, b in pairwise(cuts)]
    plain = read(data, 1 << 20, where="all")  # times that rise and fall would be asked about
    for pack in (gzip.compress, zstandard.compress):
        packed = b"".join(pack(piece) for piece in pieces)
        report, arrays = read(packed, chunk, where="all")
        assert arrays == plain[1]
        assert replace(report, sha256=plain[0].sha256, bytes=plain[0].bytes) == plain[0]


@given(
    known=st.dictionaries(st.integers(0, 30), st.integers(0, 9) | st.none(), min_size=3),
    order=st.randoms(use_true_random=False),
    chunk=st.integers(1, 100),
)
def test_every_bin_of_a_demand_file_is_where_its_time_says(known, order, chunk):
    assume(
        any(count is not None for count in known.values())
    )  # else it is refused, with a sentence
    rows = list(known.items())
    order.shuffle(rows)
    text = "t_s,requests\n" + "".join(
        f"{60 * bin_},{'' if count is None else count}\n" for bin_, count in rows
    )
    report, (values,) = read(text.encode(), chunk)
    width = round(report.bin_s / 60)
    first = min(known)
    for place, value in enumerate(values):
        expected = known.get(first + place * width)
        assert np.isnan(value) if expected is None else value == expected
    assert report.rows == len(known) and report.rejected == 0
    assert (report.requests or 0) == sum(count or 0 for count in known.values())
