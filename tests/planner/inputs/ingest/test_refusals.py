"""Files that are refused: each for its own reason, in one sentence, with nothing left behind."""

import gzip
import io

import polars as pl
import pytest
import zstandard

from planner.errors import IngestError
from planner.files.parquet_rows import Decoder
from planner.inputs.ingest import IngestOptions, ingest_file
from planner.inputs.ingest.blocks import MAX_RECORD_BYTES
from planner.inputs.ingest.reader import preview

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:15:46.6805900,374,44\n"
GENERIC = "time,input_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "t.csv is empty. Export it again."),
        ("\n  \n\n", "t.csv is empty. Export it again."),
        (AZURE, "t.csv has column names but no rows. Export it again."),
        ("TIMESTAMP ContextTokens\n2023 1\n", "t.csv has a single column, 'TIMESTAMP ContextTok"),
        ("2024-01-01 00:00:00,5,6\n2024-01-01 00:00:01,5,6\n", "line 1 holds data instead of"),
        (
            "time,input_tokens,output_tokens,time\n1,2,3,4\n",
            "line 1 names the column time again",
        ),
        ('time,in"put\n2024,3"\n', "line 1: the names of the columns cannot be read as CSV"),
        (b"\x00\x01\x02,\x03\n", "t.csv is binary, not text (a NUL byte in line 1)"),
        (AZURE.encode() + b"2023,\x00,3\n", "t.csv is binary, not text (a NUL byte in line 2)"),
        (AZURE.encode() + b"2023,\xff,3\n", "t.csv, line 2 is not UTF-8 text"),
        (AZURE.encode("utf-16")[:-1], "t.csv is damaged UTF-16 text. Save the file as UTF-8."),
        (b"PK\x03\x04xxxx", "t.csv is a ZIP archive"),
        (",".join(f"c{i}" for i in range(1001)) + "\n1\n", "t.csv has 1,001 columns and 1,000 are"),
        ("1" * 100_000 + "x,b\n1,2\n", "a column's name has 100,001 characters ('1111"),
        ("a,b\r1,2\r", "line ends of a bare carriage return"),
        (
            "a,b,c\n1,2,3\n",
            "t.csv has no column known to hold arrival. Choose one of its columns for "
            "arrival (a, b, c).",
        ),
        ("time,input_tokens\n1,2\n", "t.csv has no column known to hold output_tokens"),
        ("time,input_tokens,output_tokens\nx,2,3\n", "column time holds no time that can be read"),
        (AZURE + "2023,1\n2023,1,2,3\n", "all 2 rows were rejected, the first (line 2, '2023,1')"),
        (AZURE + ROW.replace("374", "0"), "all 1 rows were rejected"),
        (AZURE + '2023-11-16 00:00:00,"1"1,2\n', "for: double quote inside a field. Check"),
        (AZURE + '"2023-11-16,1,2\n' + ROW, "line 2: a double quote opens here and is never"),
    ],
)
def test_a_bad_table_is_refused_in_one_sentence(ingest, store, content, sentence):
    with pytest.raises(IngestError) as caught:
        ingest(content)
    message = str(caught.value)
    assert sentence in message
    assert message.startswith("t.csv")
    assert message.endswith(".") and "\n" not in message
    assert not store.exists() and not store.with_name("store.partial").exists()


@pytest.mark.parametrize("content", ["a,b\n1,2\n", '{\n "a": 1,\n'])
def test_json_that_is_not_lines(ingest, content):
    with pytest.raises(IngestError, match=r"t.jsonl, line 1 is not a JSON object. Write one"):
        ingest(content, "t.jsonl")


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
@pytest.mark.parametrize("cut", [1, 5, 12])
def test_cut_short(tmp_path, store, pack, cut):
    path = tmp_path / "t.csv.packed.csv"
    path.write_bytes(pack((AZURE + ROW * 50).encode())[:-cut])
    with pytest.raises(IngestError, match=r"is cut short"):
        ingest_file(path, store)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_damaged(tmp_path, store, pack):
    data = bytearray(pack(bytes((AZURE + ROW * 5000).encode())))
    data[len(data) // 2 :] = b"\xff" * (len(data) - len(data) // 2)
    path = tmp_path / "t.csv"
    path.write_bytes(data)
    with pytest.raises(IngestError, match=r"is (damaged|cut short)"):
        ingest_file(path, store)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress])
def test_bomb(tmp_path, store, pack):
    path = tmp_path / "t.csv"
    path.write_bytes(pack((AZURE + ROW * 200_000).encode()))
    assert path.stat().st_size < 100_000
    options = IngestOptions(max_expanded_bytes=2_000_000, where="all")
    with pytest.raises(IngestError, match=r"t.csv expands to more than 0.002 GB"):
        ingest_file(path, store, options)


def test_parquet_bomb(tmp_path, store):
    path = tmp_path / "t.parquet"
    rows = 200_000
    pl.DataFrame(
        {"time": [1] * rows, "input_tokens": [1] * rows, "output_tokens": [1] * rows}
    ).write_parquet(path)
    assert path.stat().st_size < 10_000
    with pytest.raises(IngestError, match="expands to more than"):
        ingest_file(path, store, IngestOptions(max_expanded_bytes=1_000_000))


def test_a_line_without_end_does_not_fill_memory(tmp_path, store):
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write((GENERIC + "1,2,3\n" * 50_000).encode())
        for _ in range(40):
            file.write(b"a" * (1 << 20))
    with pytest.raises(IngestError, match=r"line 50002 is longer than 16 MiB"):
        ingest_file(path, store, IngestOptions(chunk_bytes=MAX_RECORD_BYTES))


def test_over_quota_is_refused_by_size_alone(tmp_path, store):
    path = tmp_path / "big.csv"
    with path.open("wb") as file:
        file.truncate(11_000_000_000)  # sparse: no byte of it is ever written or read
    with pytest.raises(IngestError, match=r"big.csv is 11.0 GB, over the quota of 10.0 GB. Split"):
        ingest_file(path, store)


@pytest.mark.parametrize("name", ["t.docx", "t", "t.csv.bz2"])
def test_unknown_extension(ingest, name):
    with pytest.raises(IngestError, match=r"has an unknown extension. Name it \.csv, \.tsv, \.txt"):
        ingest(AZURE + ROW, name)


def test_directory_and_absent_file(tmp_path, store):
    with pytest.raises(IngestError, match="is a folder"):
        ingest_file(tmp_path, store)
    with pytest.raises(IngestError, match=r"absent.csv: there is no such file. Check the path"):
        ingest_file(tmp_path / "absent.csv", store)


def test_not_parquet_or_half_of_one(ingest):
    with pytest.raises(IngestError, match="is named a Parquet file but is not one"):
        ingest(AZURE + ROW, "t.parquet")
    buffer = io.BytesIO()
    pl.DataFrame({"time": [1]}).write_parquet(buffer)
    with pytest.raises(IngestError, match="is not a readable Parquet file"):
        ingest(buffer.getvalue()[:-9], "t.parquet")


def spoilt_parquet():
    """A good file, and one whose first page says that it holds -1 values instead of 3."""
    buffer = io.BytesIO()
    columns = {"time": [0.0, 1.0, 2.5], "input_tokens": [1, 2, 3], "output_tokens": [4, 5, 6]}
    pl.DataFrame(columns).write_parquet(buffer, compression="uncompressed")
    good = buffer.getvalue()
    place = 4 + good[4:].index(b"\x15\x06") + 1  # in the page's header: a field, 3 as zigzag
    return good, good[:place] + b"\x01" + good[place + 1 :]


def test_parquet_that_would_end_the_process_is_a_sentence(tmp_path, store):
    """The allocator aborts: no exception is raised where it is decoded."""
    good, spoilt = spoilt_parquet()
    path = tmp_path / "t.parquet"
    path.write_bytes(spoilt)
    sentence = r"t.parquet is not a readable Parquet file \(it asks for more than 4 GB of memory at"
    with pytest.raises(IngestError, match=sentence):
        ingest_file(path, store)
    assert not store.exists()
    with pytest.raises(IngestError, match=sentence):
        preview(path, "t.parquet")
    path.write_bytes(good)
    assert ingest_file(path, store).rows == 3


def test_a_small_parquet_that_grows_without_end_is_refused_early(tmp_path, store):
    path = tmp_path / "t.parquet"
    row = {"time": [1], "input_tokens": [1], "output_tokens": [1], "hash_ids": [[7] * 1000]}
    pl.concat([pl.DataFrame(row)] * 20_000).write_parquet(path)
    assert path.stat().st_size < 200_000
    with pytest.raises(IngestError, match=r"t.parquet expands more than 200 times, to over 0.1 GB"):
        ingest_file(path, store)


def test_what_was_asked_of_a_decoder_and_not_taken_is_dropped(tmp_path):
    """As by a reader that stops in the middle and another that begins anew."""
    path = tmp_path / "t.parquet"
    pl.DataFrame({"a": range(9), "b": [[[1]]] * 9}).write_parquet(path)
    made = Decoder(path, "t.parquet")
    assert (made.columns, dict(made.left_out), made.rows) == (("a",), {"b": "List(List(Int64))"}, 9)
    made.request_rows(["a"], 0, 4)
    made.request_rows(["a"], 4, 9)
    assert made.take_rows()["a"].to_list() == [4, 5, 6, 7, 8]


def test_strict_refuses_at_the_first_rejected_row(ingest, store):
    rows = AZURE + ROW + ROW.replace("374", "-1") + ROW.replace("374", "0") + "x,1\n"
    with pytest.raises(IngestError, match=r"t.csv, line 3: input tokens negative \('2023-11-16 18"):
        ingest(rows, strict=True)
    assert not store.exists()
    assert ingest(rows).rejected == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"format": "xml"}, "There is no format 'xml'. Choose one of auto, azure"),
        ({"mapping": {"colour": "a"}}, "There is no field 'colour' to map a column to"),
        ({"mapping": {"arrival": "nope"}}, "no column 'nope' for arrival. Choose one of"),
        ({"mapping": {"model": "x"}, "model": "m"}, "model is given both as a column"),
        ({"mapping": {"arrival": ""}}, "The mapping of arrival names no column"),
        ({"missing": "maybe"}, "missing is 'maybe'"),
        ({"bin_s": 0.0}, "bin_s is 0"),
        ({"max_tokens": 0}, "max_tokens must be between"),
        ({"chunk_bytes": 0}, "chunk_bytes must be at least 1"),
        (
            {"format": "demand", "mapping": {"arrival": "time"}},
            "The field arrival does not belong to a file of format demand",
        ),
        ({"mapping": {"hash_ids": "time"}}, "hash_ids are lists, which CSV cannot hold"),
    ],
)
def test_bad_options_get_a_sentence(ingest, options, sentence):
    with pytest.raises(IngestError) as caught:
        ingest(GENERIC + "1,2,3\n", **options)
    assert sentence in str(caught.value)


def test_cancelling_leaves_nothing_and_keeps_the_former_trace(ingest, store, tmp_path):
    ingest(GENERIC + "1,2,3\n")
    before = sorted(p.name for p in store.rglob("*"))

    class StopError(Exception):
        pass

    fractions = []

    def stop(fraction: float) -> None:
        fractions.append(fraction)
        if len(fractions) == 2:
            raise StopError

    path = tmp_path / "long.csv"
    path.write_text(GENERIC + "1,2,3\n" * 1000)
    with pytest.raises(StopError):
        ingest_file(path, store, IngestOptions(chunk_bytes=1024), progress=stop)
    assert sorted(p.name for p in store.rglob("*")) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["long.csv", "store", "t.csv"]


def test_a_foreign_folder_is_not_overwritten(ingest, store):
    store.mkdir()
    (store / "thesis.txt").write_text("mine")
    with pytest.raises(IngestError, match="holds other files"):
        ingest(GENERIC + "1,2,3\n")
    assert (store / "thesis.txt").read_text() == "mine"


def test_a_sentence_names_no_more_columns_than_can_be_read(ingest):
    header = ",".join(f"column_{i}" for i in range(500))
    with pytest.raises(IngestError, match="column_19 and 480 more") as caught:
        ingest(header + "\n" + "1," * 499 + "1\n")
    assert len(str(caught.value)) < 500
