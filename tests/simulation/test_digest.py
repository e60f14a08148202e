"""Results kept by the values of arguments."""

import numpy as np

from simulation.digest import cached_by_value


def test_equal_arguments_are_computed_once_and_the_oldest_are_dropped() -> None:
    computed: list[float] = []

    @cached_by_value(2)
    def total(values: np.ndarray, factor: float) -> float:
        computed.append(factor)
        return factor * float(values.sum())

    for factor in (1.0, 2.0, 1.0, 3.0, 2.0):
        assert total(np.arange(4.0), factor) == 6 * factor
    assert computed == [1.0, 2.0, 3.0, 2.0]
    assert total(np.ones(4), 2.0) == 8.0
