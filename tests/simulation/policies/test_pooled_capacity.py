"""How many instances of a pool carry what: laws, and brute force on the curve."""

import numpy as np

from simulation.policies.parts.guard import capacity_table, fewest_instances, load_of

N = np.arange(1, 65)
SHARES = np.array([1.0 - 0.5 * (N**-0.5 - 1 / 8), np.ones(64)])  # square-root staffing; a line
TABLE = capacity_table(2, SHARES)


def carried(counts):
    return np.array([[load_of.py_func(TABLE, p, n) for p in range(2)] for n in counts])


def test_each_carries_more_among_more_and_all_of_it_in_a_large_pool():
    loads = carried(range(100))
    assert (loads[0] == 0).all()
    assert (np.diff(loads, axis=0) > 0).all()
    assert (np.diff(loads[1:, 0] / np.arange(1, 100)) >= -1e-12).all()
    assert np.allclose(loads[:, 1], np.arange(100))
    assert np.allclose(np.diff(loads[64:, 0]), 1.0)
    assert (loads[:, 0] <= loads[:, 1]).all()


def test_the_fewest_that_carry_a_load_are_those_of_trying_all():
    loads = carried(range(200))
    for load in np.random.default_rng(1).uniform(0, 120, 60):
        for p in range(2):
            assert fewest_instances.py_func(TABLE, p, load) == (loads[:, p] < load).sum()
    for n in (0, 1, 2, 7, 64, 99):  # what n carry takes n
        assert [fewest_instances.py_func(TABLE, p, loads[n, p]) for p in range(2)] == [n, n]
    assert (
        fewest_instances.py_func(capacity_table(1, None), 0, 4.2) == 5.0
    )  # without shares: a line
