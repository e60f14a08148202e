"""What appears whole or not at all, whoever else writes the same; one process at a time."""

import errno
import os
import threading
import time
from pathlib import Path

import pytest

from planner.errors import RunCancelled
from planner.files.atomic_write import final_name, is_draft, replace_file, replace_folder
from planner.storage import row_arrays

WRITERS, TIMES = 4, 40


def together(act):
    """Several threads at once; what they raised."""
    begin, raised = threading.Barrier(WRITERS), []

    def one(number):
        begin.wait()
        try:
            for _ in range(TIMES):
                act(number)
        except Exception as problem:  # noqa: BLE001 - the test's question
            raised.append(problem)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_of_many_writers_of_a_file_each_reader_sees_one(tmp_path):
    path = tmp_path / "figures.json"
    seen = set()

    def write(number):
        with replace_file(path) as draft:
            assert is_draft(draft.name)
            draft.write_text(f"{number}" * 10_000)
        seen.update({path.read_text()})

    assert together(write) == []
    assert seen <= {f"{number}" * 10_000 for number in range(WRITERS)}
    assert os.listdir(tmp_path) == [path.name]


def test_of_many_writers_of_a_folder_one_is_left_whole(tmp_path):
    path = tmp_path / "store"

    def write(number):
        with replace_folder(path) as draft:
            assert final_name(draft.name) == path.name
            for name in "ab":
                (draft / name).write_text(f"{number}")

    assert together(write) == []
    assert os.listdir(tmp_path) == [path.name]
    assert (path / "a").read_text() == (path / "b").read_text()


@pytest.mark.parametrize("writer", [replace_file, replace_folder])
def test_what_fails_leaves_what_was_there(tmp_path, writer):
    path = tmp_path / "store"
    path.mkdir()
    (path / "before").touch()
    with pytest.raises(RunCancelled), writer(path):
        raise RunCancelled
    assert [child.name for child in tmp_path.rglob("*")] == [path.name, "before"]


def test_a_folder_does_not_take_the_place_of_a_file(tmp_path):
    path = tmp_path / "store"
    path.touch()
    with pytest.raises(OSError) as error, replace_folder(path):
        pass
    assert error.value.errno == errno.ENOTDIR
    assert path.is_file()


@pytest.mark.parametrize("name", ["12-abc", "a.csv", "."])
def test_what_is_no_draft_is_meant_for_itself(name):
    assert final_name(name) == name


def test_one_at_a_time_makes_what_lies_there(data_dir):
    inside, most = [], 0

    def make(number):
        nonlocal most
        with row_arrays.lock_folder("traces/1-abc", lambda: None):
            inside.append(number)
            most = max(most, len(inside))
            time.sleep(0.0005)
            inside.remove(number)

    row_arrays.LOCK_RETRY_S, before = 0.001, row_arrays.LOCK_RETRY_S
    try:
        assert together(make) == []
    finally:
        row_arrays.LOCK_RETRY_S = before
    assert most == 1
    assert not list((data_dir / "locks").iterdir())


def test_who_waits_may_stop_and_what_a_dead_process_held_is_free(data_dir):
    def cancelled():
        raise RunCancelled

    name = "traces/2-abc"
    held, end = os.pipe()
    pid = os.fork()
    if pid == 0:
        with row_arrays.lock_folder(name, lambda: None):
            os.write(end, b"1")
            time.sleep(60)
        os._exit(1)
    assert os.read(held, 1) == b"1"
    try:
        with pytest.raises(RunCancelled), row_arrays.lock_folder(name, cancelled):
            pass
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    with row_arrays.lock_folder(name, cancelled):
        assert Path(data_dir / "locks").is_dir()
