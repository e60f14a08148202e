"""Steps side by side: nothing but the order in time is different."""

import os
import sys
import threading
from functools import partial

import pytest

from planner.domain.parallel import (
    MAX_PARALLEL_REQUESTS,
    NICENESS,
    begun,
    parallel_replays,
    run_in_parallel,
)
from planner.domain.progress import Progress, silent
from simulation.trace_replay import LONG

WAIT_S = 120.0  # for another thread, that is for ever


def test_two_run_at_a_time_and_answers_keep_their_order() -> None:
    both = threading.Barrier(2, timeout=WAIT_S)  # broken where one runs after the other

    def step(name: str, report: Progress) -> str:
        both.wait()
        return name

    assert run_in_parallel([partial(step, name) for name in "abcd"], silent) == list("abcd")


def test_only_the_caller_is_told_each_stage_once_and_ever_further() -> None:
    seen: list[tuple[float, str, int]] = []

    def step(name: str, report: Progress) -> None:
        for done in range(50):
            report(done / 50, name)

    run_in_parallel(
        [partial(step, name) for name in "abc"],
        lambda fraction, stage: seen.append((fraction, stage, threading.get_ident())),
    )
    assert {thread for _, _, thread in seen} == {threading.get_ident()}
    assert sorted(stage for _, stage, _ in seen if stage) == list("abc")
    fractions = [fraction for fraction, _, _ in seen]
    assert fractions == sorted(fractions)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities of their own")
def test_steps_in_the_background_give_way_to_the_caller() -> None:
    def niceness(report: Progress) -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    ours = niceness(silent)
    with begun([niceness], at_once=1, background=True) as results:
        assert results(silent) == [min(19, ours + NICENESS)]
    assert niceness(silent) == ours


def test_steps_that_begin_ahead_run_before_their_results_are_asked_for() -> None:
    ran = [threading.Event(), threading.Event()]

    def step(at: int, report: Progress) -> int:
        ran[at].set()
        return at

    with begun([partial(step, at) for at in (0, 1)], at_once=1) as results:
        assert all(event.wait(WAIT_S) for event in ran)
        assert results(silent) == [0, 1]


def test_steps_that_begin_ahead_end_if_their_results_are_no_longer_needed() -> None:
    started, further = threading.Event(), []

    def endless(report: Progress) -> None:
        started.set()
        while True:
            report(0.5, "on")

    def fail() -> None:
        with begun([endless, further.append], at_once=1):
            assert started.wait(WAIT_S)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not further  # what had not begun never begins


@pytest.mark.parametrize("cancelled", [True, False], ids=["the caller", "a step"])
def test_what_one_raises_ends_the_others_and_comes_out(cancelled: bool) -> None:
    begun, rounds = threading.Event(), threading.Event()

    def on(report: Progress) -> None:
        begun.set()
        while not rounds.wait(0.001):  # for ever, but for what it is told
            report(0.5, "on")

    def off(report: Progress) -> None:
        assert begun.wait(WAIT_S)
        if not cancelled:
            raise ZeroDivisionError

    def progress(fraction: float, stage: str) -> None:
        if cancelled:
            raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError):
            run_in_parallel([on, off, off, off], progress)
    finally:
        rounds.set()


def test_large_replays_take_turns() -> None:
    assert parallel_replays(MAX_PARALLEL_REQUESTS) == 2
    assert parallel_replays(MAX_PARALLEL_REQUESTS + 1) == parallel_replays(LONG) == 1
    assert parallel_replays(LONG + 1) == 2  # streams are not in memory
