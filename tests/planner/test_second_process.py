"""The second process carries out what was begun, and its loss changes no result."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from planner.second_process import begin, result_of, results_of, second_process

T = TypeVar("T")
pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="a single core has no second process"
)


@pytest.fixture
def second() -> Iterator[None]:
    with second_process(["fractions"]):
        yield


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 180
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come"
        time.sleep(0.005)


def process_id(call: int) -> tuple[int, int]:
    return call, os.getpid()


def process_id_once_taken(call: int, folder: Path) -> tuple[int, int]:
    (folder / f"{call}").touch()
    return process_id(call)


def process_id_the_first_after_the_last(call: int, folder: Path) -> tuple[int, int]:
    (folder / f"{call}").touch()
    if call == 0:
        wait_for(folder / "9")
    return process_id(call)


def refuse(reason: str) -> None:
    raise ValueError(reason)


def end_itself(first_process: int, folder: Path) -> int:
    if os.getpid() != first_process:
        (folder / f"{first_process}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return first_process


def begun(function: Callable[[int, Path], T], argument: int, folder: Path) -> T:
    """Return the result of a call that the second process has taken."""
    begin(function, argument, folder)
    wait_for(folder / f"{argument}")
    return result_of(function, argument, folder)


@pytest.mark.usefixtures("second")
def test_a_call_that_was_begun_is_carried_out_in_the_second_process(tmp_path: Path) -> None:
    results = [begun(process_id_once_taken, call, tmp_path) for call in range(3)]
    assert [call for call, _ in results] == [0, 1, 2]
    assert len({pid for _, pid in results}) == 1
    assert os.getpid() not in {pid for _, pid in results}


@pytest.mark.usefixtures("second")
def test_a_call_that_was_not_begun_is_carried_out_here() -> None:
    begin(process_id, 1)
    assert result_of(process_id, 2) == (2, os.getpid())


def test_without_a_second_process_calls_are_carried_out_here() -> None:
    begin(process_id, 1)
    assert result_of(process_id, 1) == (1, os.getpid())
    with second_process([]):
        begin(process_id, 2)
        assert result_of(process_id, 2) == (2, os.getpid())


@pytest.mark.usefixtures("second")
def test_an_error_of_a_call_is_raised_where_its_result_is_needed() -> None:
    begin(refuse, "too short")
    with pytest.raises(ValueError, match="too short"):
        result_of(refuse, "too short")


@pytest.mark.usefixtures("second")
def test_calls_of_a_killed_process_are_carried_out_here(tmp_path: Path) -> None:
    assert begun(end_itself, os.getpid(), tmp_path) == os.getpid()
    begin(process_id, 1)
    assert result_of(process_id, 1) == (1, os.getpid())


@pytest.mark.usefixtures("second")
def test_both_processes_share_several_calls(tmp_path: Path) -> None:
    """This process takes the last calls while the other waits in the first."""
    calls = [(i, tmp_path) for i in range(10)]
    for call in calls:
        begin(process_id_the_first_after_the_last, *call)
    wait_for(tmp_path / "0")
    done: list[float] = []
    results = results_of(process_id_the_first_after_the_last, calls, done.append)
    assert [call for call, _ in results] == list(range(10))
    assert len({pid for _, pid in results}) == 2
    assert results[-1][1] == os.getpid()
    assert done == sorted(done)
    assert 0 <= min(done) <= max(done) < 1


def test_several_calls_without_a_second_process_are_carried_out_here() -> None:
    here = os.getpid()
    assert results_of(process_id, [(3,), (1,)], lambda done: None) == [(3, here), (1, here)]


def test_the_process_ends_with_the_block(tmp_path: Path) -> None:
    with second_process(["fractions"]):
        _, pid = begun(process_id_once_taken, 1, tmp_path)
    assert pid != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
