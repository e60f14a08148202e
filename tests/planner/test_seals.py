"""What was kept and is spoilt on disk is a sentence before a library reads it."""

import json

import numpy as np
import polars as pl
import pytest

from planner import storage
from planner.errors import Damaged
from planner.ingest import IngestOptions, bin_requests, ingest_file, read_demand, read_requests
from planner.ingest.store import read_report
from planner.models import Run
from planner.seals import SEAL, checked, intact, seal
from planner.services import traces
from planner.services.runs import run_create
from planner.services.worker import run_execute
from planner.studies.character.kept import character_written, rates_kept, total_kept

ROWS = "timestamp,input_tokens,output_tokens\n" + "".join(f"{i}.5,{i + 1},7\n" for i in range(99))
DEMAND = "time,requests\n2024-01-01T00:00:00Z,5\n2024-01-01T00:01:00Z,7\n"
AGAIN = "send the file of this trace again, or restore a backup"


def spoilt(path):
    """One byte turned round, in the middle, at the same length."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


HARMS = [spoilt, cut, lambda path: path.unlink()]


@pytest.fixture
def store(tmp_path):
    def stored(content, name="t.csv"):
        (tmp_path / name).write_text(content)
        ingest_file(tmp_path / name, tmp_path / "store", IngestOptions())
        return tmp_path / "store"

    return stored


@pytest.mark.parametrize("harm", HARMS)
def test_a_part_of_a_trace_that_is_spoilt_is_not_read(store, harm):
    folder = store(ROWS)
    assert read_requests(folder).arrival_s.size == 99
    (part,) = (folder / "requests").iterdir()
    harm(part)
    for read in (read_requests, lambda folder: bin_requests(folder, 60.0)):
        with pytest.raises(Damaged, match=f"{part.name} that was kept here is not .*; {AGAIN}"):
            read(folder)
    assert not intact(folder)


@pytest.mark.parametrize("harm", HARMS)
def test_counts_that_are_spoilt_are_not_read(store, harm):
    folder = store(DEMAND)
    assert intact(folder)
    harm(folder / "demand.parquet")
    with pytest.raises(Damaged, match=f"demand.parquet that was kept here is not .*; {AGAIN}"):
        read_demand(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"models": 3}'])
@pytest.mark.parametrize("sealed", [True, False])
def test_a_report_that_is_spoilt_is_a_sentence(store, content, sealed):
    folder = store(ROWS)
    (folder / "meta.json").write_text(content)
    if not sealed:
        (folder / SEAL).unlink()
    with pytest.raises(Damaged, match=AGAIN):
        read_report(folder)


def test_what_an_earlier_version_kept_without_a_seal_is_read_and_sealed(store):
    folder = store(ROWS)
    written = (folder / SEAL).read_text()
    for content in (None, "", "[]"):
        if content is None:
            (folder / SEAL).unlink()
        else:
            (folder / SEAL).write_text(content)
        assert read_requests(folder).arrival_s.size == 99
        assert json.loads((folder / SEAL).read_text()) == json.loads(written)
    for path in (folder / "requests").iterdir():
        path.unlink()
    with pytest.raises(Damaged, match=AGAIN):
        read_requests(folder)


def lying(path):
    """Lengths of pages turned round, upon which Polars ends the process or panics."""
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = b"\xff" * (len(content) // 2 - 4)
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [lying, cut])
def test_what_was_spoilt_before_it_had_a_seal_is_a_sentence(store, harm):
    folder = store(ROWS)
    (folder / SEAL).unlink()
    (part,) = (folder / "requests").iterdir()
    harm(part)
    for _ in range(2):  # and is never sealed as it is
        with pytest.raises(
            Damaged, match=f"{part.name} that was kept .* decoded any more; {AGAIN}"
        ):
            read_requests(folder)


def test_a_folder_that_may_only_be_read_is_read_without_a_seal(store, monkeypatch):
    folder = store(ROWS)
    (folder / SEAL).unlink()

    def refused(*_):
        raise PermissionError

    monkeypatch.setattr("planner.seals.seal", refused)
    assert read_requests(folder).arrival_s.size == 99


@pytest.mark.parametrize("harm", HARMS)
def test_what_is_computed_from_a_trace_is_computed_anew(store, harm):
    folder = store(ROWS)
    character_written(folder)
    rates, total = rates_kept(folder, "all"), total_kept(folder)
    for name in ("character-rates.parquet", "character-total.parquet", "character.json"):
        harm(folder / name)
        assert rates_kept(folder, "all").equals(rates)
        assert np.array_equal(total_kept(folder).values, total.values)
        assert intact(folder)


@pytest.mark.parametrize("harm", HARMS[:2])
def test_tables_and_arrays_of_a_run_that_are_spoilt_are_a_sentence(data_dir, harm):
    store = "runs/77001"
    storage.tables_write(store, {"plan": pl.DataFrame({"a": [1, 2]})})
    storage.arrays_write(store, "basis", {"b": np.arange(3)})
    storage.tables_write(store, {"more": pl.DataFrame({"a": [3]})})
    folder = data_dir / store
    assert set(json.loads((folder / SEAL).read_text())) == {
        "plan.parquet",
        "basis.npz",
        "more.parquet",
    }
    harm(folder / "plan.parquet")
    harm(folder / "basis.npz")
    for read in (
        lambda: storage.table_read(store, "plan"),
        lambda: storage.table_rows(store, "plan"),
        lambda: storage.arrays_read(store, "basis"),
    ):
        with pytest.raises(Damaged, match="carry the run out again, or restore a backup"):
            read()
    (folder / "basis.npz").unlink()  # one that was never written is none
    with pytest.raises(Damaged):
        storage.arrays_read(store, "basis")
    assert storage.arrays_read(store, "other") == {}
    assert storage.table_read(store, "more")["a"].to_list() == [3]


def test_a_mark_follows_what_is_written_again(tmp_path):
    path = tmp_path / "a"
    path.write_text("first")
    seal(tmp_path)
    path.write_text("other")
    with pytest.raises(Damaged, match="a disk or a hand has changed it; do so"):
        checked(tmp_path, "a", "do so")
    seal(tmp_path, "a")
    assert checked(tmp_path, "a", "do so") == path


@pytest.mark.parametrize("harm", HARMS)
def test_a_run_on_a_spoilt_trace_fails_with_a_sentence_and_its_file_heals_it(
    db, planner, data_dir, tmp_path, harm
):
    path = tmp_path / "log.csv"
    path.write_text(ROWS)
    trace = traces.trace_ingest_path(path=path, options=IngestOptions(name=path.name))
    (part,) = (data_dir / trace.store / "requests").iterdir()
    harm(part)

    def forecast():
        return run_create(owner=planner, kind=Run.Kind.FORECAST, trace=trace, enqueue=False)

    over = run_execute(run_id=forecast().pk)
    assert (over.state, over.reason) == (Run.State.FAILED, "A kept table is damaged")
    assert part.name in over.problem and AGAIN in over.problem and not over.traceback
    assert traces.trace_ingest_path(path=path, options=IngestOptions(name=path.name)) == trace
    assert read_requests(data_dir / trace.store).arrival_s.size == 99
    assert part.name not in run_execute(run_id=forecast().pk).problem
