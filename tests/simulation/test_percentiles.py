"""Percentiles are numpy's, to the last bit."""

import numpy as np
import pytest

from simulation.percentiles import percentiles

SHARES = (0, 7.3, 50, 50, 95, 99, 100)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 20, 21, 100, 101, 4999])
def test_they_are_numpys(n):
    rng = np.random.default_rng(n)
    for _ in range(20):
        values = rng.gamma(1.0, 1.0, n) * rng.choice([1e-9, 1.0, 1e9])
        values = np.round(values, int(rng.integers(0, 3)))  # with ties
        kept = values.copy()
        assert percentiles(values, SHARES) == np.percentile(values, SHARES).tolist()
        assert np.array_equal(values, kept)
