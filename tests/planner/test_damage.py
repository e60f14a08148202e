"""A damaged stored file gives one sentence, and never a traceback."""

import numpy as np
import polars as pl
import pytest

from planner.domain.trace_statistics.cache import stored_rates, stored_total, write_character
from planner.errors import DamagedFile
from planner.files.damage import all_decode
from planner.inputs.ingest import (
    IngestOptions,
    bin_requests,
    ingest_file,
    read_demand,
    read_requests,
)
from planner.inputs.ingest.store import read_report
from planner.models import Run
from planner.services import traces
from planner.services.runs import run_create
from planner.services.worker import run_execute
from planner.storage import row_arrays

ROWS = "timestamp,input_tokens,output_tokens\n" + "".join(f"{i}.5,{i + 1},7\n" for i in range(99))
DEMAND = "time,requests\n2024-01-01T00:00:00Z,5\n2024-01-01T00:01:00Z,7\n"


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def overwrite(path):
    path.write_bytes(b"?" * path.stat().st_size)


HARMS = [cut, overwrite, lambda path: path.unlink()]


def lie_about_lengths(path):
    """Change the lengths of pages, upon which Polars can end its process."""
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 2] = b"\xff" * (len(content) // 2 - 4)
    path.write_bytes(content)


@pytest.fixture
def store(tmp_path):
    def stored(content, name="t.csv"):
        (tmp_path / name).write_text(content)
        ingest_file(tmp_path / name, tmp_path / "store", IngestOptions())
        return tmp_path / "store"

    return stored


@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_part_of_a_trace_is_reported(store, harm):
    folder = store(ROWS)
    assert read_requests(folder).arrival_s.size == 99
    (part,) = (folder / "requests").iterdir()
    harm(part)
    for read in (read_requests, lambda folder: bin_requests(folder, 60.0), write_character):
        with pytest.raises(DamagedFile, match="send the file of this trace again"):
            read(folder)


def test_a_trace_that_lost_requests_is_reported(store):
    folder = store(ROWS)
    (part,) = (folder / "requests").iterdir()
    pl.read_parquet(part).head(50).write_parquet(part)
    with pytest.raises(DamagedFile, match="50 of 99 requests"):
        read_requests(folder)


@pytest.mark.parametrize("harm", HARMS)
def test_damaged_counts_are_reported(store, harm):
    folder = store(DEMAND)
    assert len(read_demand(folder)) == 1
    harm(folder / "demand.parquet")
    with pytest.raises(DamagedFile, match="send the file of this trace again"):
        read_demand(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"models": 3}'])
def test_a_damaged_report_is_reported(store, content):
    folder = store(ROWS)
    (folder / "meta.json").write_text(content)
    with pytest.raises(DamagedFile, match=r"meta\.json"):
        read_report(folder)


@pytest.mark.parametrize("harm", [cut, overwrite, lie_about_lengths])
def test_another_process_tells_whether_a_store_decodes(store, harm):
    folder = store(ROWS)
    assert all_decode(folder)
    (part,) = (folder / "requests").iterdir()
    harm(part)
    assert not all_decode(folder)


@pytest.mark.parametrize("harm", HARMS)
def test_damaged_figures_of_a_trace_are_computed_again(store, harm):
    folder = store(ROWS)
    write_character(folder)
    rates, total = stored_rates(folder, "all"), stored_total(folder)
    for name in ("character-rates.parquet", "character-total.parquet", "character.json"):
        harm(folder / name)
        assert stored_rates(folder, "all").equals(rates)
        assert np.array_equal(stored_total(folder).values, total.values)


@pytest.mark.parametrize("harm", HARMS[:2])
def test_damaged_tables_and_arrays_of_a_run_are_reported(data_dir, harm):
    store = "runs/77001"
    row_arrays.tables_write(store, {"plan": pl.DataFrame({"a": [1, 2]})})
    row_arrays.tables_write(store, {"more": pl.DataFrame({"a": [3]})})
    row_arrays.arrays_write(store, "basis", {"b": np.arange(3)})
    harm(data_dir / store / "plan.parquet")
    harm(data_dir / store / "basis.npz")
    for read in (
        lambda: row_arrays.table_read(store, "plan"),
        lambda: row_arrays.table_rows(store, "plan"),
        lambda: row_arrays.arrays_read(store, "basis"),
    ):
        with pytest.raises(DamagedFile, match="carry the run out again, or restore a backup"):
            read()
    assert row_arrays.arrays_read(store, "other") == {}
    assert row_arrays.table_read(store, "more")["a"].to_list() == [3]


@pytest.mark.parametrize("harm", HARMS)
def test_a_run_on_a_damaged_trace_fails_and_uploading_the_file_repairs_it(
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
    assert over.state == Run.State.FAILED
    assert "send the file of this trace again" in over.problem and not over.traceback
    assert traces.trace_ingest_path(path=path, options=IngestOptions(name=path.name)) == trace
    assert read_requests(data_dir / trace.store).arrival_s.size == 99
    assert "damaged" not in run_execute(run_id=forecast().pk).problem
