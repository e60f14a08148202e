"""A call with equal arguments is made once, also by threads that need it at the same time."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from simulation.digest import cached_by_value


def test_threads_that_need_the_same_result_compute_it_once() -> None:
    calls: list[float] = []
    together = Barrier(4)

    @cached_by_value(8)
    def total(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        calls.append(float(values.sum()))
        return calls[-1]

    def needed(_: int) -> float:
        together.wait()
        return total(np.arange(3.0))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(needed, range(4))) == [3.0] * 4
    assert calls == [3.0]
    assert total(np.arange(4.0)) == 6.0
    assert calls == [3.0, 6.0]


def test_a_call_that_failed_is_made_again() -> None:
    asked: list[int] = []

    @cached_by_value(8)
    def refuse_once(value: int) -> int:
        asked.append(value)
        if len(asked) == 1:
            raise ValueError("not yet")
        return value

    with pytest.raises(ValueError, match="not yet"):
        refuse_once(5)
    assert refuse_once(5) == 5
    assert asked == [5, 5]


def test_a_call_that_differs_only_outside_the_inputs_is_not_made_again() -> None:
    made: list[tuple[int, str]] = []

    @cached_by_value(8, lambda value, _: (value,))
    def doubled(value: int, label: str) -> int:
        made.append((value, label))
        return 2 * value

    assert [doubled(1, "a"), doubled(1, "b"), doubled(2, "b")] == [2, 2, 4]
    assert made == [(1, "a"), (2, "b")]
