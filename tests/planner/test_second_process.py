"""The second process carries out what was begun, and its loss changes no result."""

import os
import signal
from collections.abc import Iterator

import pytest

from planner.second_process import begin, result_of, results_of, second_process

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="a single core has no second process"
)


@pytest.fixture
def second() -> Iterator[None]:
    with second_process(["fractions"]):
        yield


def process_id(call: int) -> tuple[int, int]:
    return call, os.getpid()


def refuse(reason: str) -> None:
    raise ValueError(reason)


def end_itself(first_process: int) -> int:
    if os.getpid() != first_process:
        os.kill(os.getpid(), signal.SIGKILL)
    return first_process


@pytest.mark.usefixtures("second")
def test_a_call_that_was_begun_is_carried_out_in_the_second_process() -> None:
    for call in range(3):
        begin(process_id, call)
    seconds = [result_of(process_id, call) for call in range(3)]
    assert [call for call, _ in seconds] == [0, 1, 2]
    assert len({pid for _, pid in seconds}) == 1
    assert os.getpid() not in {pid for _, pid in seconds}


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
def test_calls_of_a_killed_process_are_carried_out_here() -> None:
    begin(end_itself, os.getpid())
    begin(process_id, 1)
    assert result_of(end_itself, os.getpid()) == os.getpid()
    assert result_of(process_id, 1) == (1, os.getpid())


@pytest.mark.usefixtures("second")
def test_both_processes_share_several_calls() -> None:
    """Results keep the order of the calls, whichever process carried them out."""
    calls = [(i,) for i in range(40)]
    for call in calls:
        begin(process_id, *call)
    begin(process_id, -1)
    assert result_of(process_id, -1)[1] != os.getpid()  # the other process has taken all of them
    done: list[float] = []
    results = results_of(process_id, calls, done.append)
    assert [call for call, _ in results] == list(range(40))
    assert os.getpid() not in {pid for _, pid in results}
    assert done == sorted(done)
    assert 0 <= min(done) <= max(done) < 1


def test_several_calls_without_a_second_process_are_carried_out_here() -> None:
    here = os.getpid()
    assert results_of(process_id, [(3,), (1,)], lambda done: None) == [(3, here), (1, here)]


def test_the_process_ends_with_the_block() -> None:
    with second_process(["fractions"]):
        begin(process_id, 1)
        _, pid = result_of(process_id, 1)
    assert pid != os.getpid()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
