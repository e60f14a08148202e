"""How many instances carry what: laws, and brute force on the curve."""

import numpy as np

from simulation.policies.parts.pooled_capacity import PooledCapacity

N = np.arange(1, 65)
SHARES = np.array([1.0 - 0.5 * (N**-0.5 - 1 / 8), np.ones(64)])  # square-root staffing; a line


def test_each_carries_more_among_more_and_all_of_it_in_a_large_pool():
    staffing = PooledCapacity(2, SHARES)
    carried = np.array([staffing.carried(np.array([n, n])) for n in range(100)])
    assert (carried[0] == 0).all()
    assert (np.diff(carried, axis=0) > 0).all()
    assert (np.diff(carried[1:, 0] / np.arange(1, 100)) >= -1e-12).all()
    assert np.allclose(carried[:, 1], np.arange(100))
    assert np.allclose(np.diff(carried[64:, 0]), 1.0)
    assert (carried[:, 0] <= carried[:, 1]).all()


def test_the_fewest_that_carry_a_load_are_those_of_trying_all():
    staffing = PooledCapacity(2, SHARES)
    carried = np.array([staffing.carried(np.array([n, n])) for n in range(200)])
    for load in np.random.default_rng(1).uniform(0, 120, 60):
        fewest = staffing.fewest(np.array([load, load]))
        assert fewest.tolist() == [int((carried[:, p] < load).sum()) for p in range(2)]
    for n in (0, 1, 2, 7, 64, 99):  # what n carry takes n
        assert staffing.fewest(staffing.carried(np.array([n, n]))).tolist() == [n, n]
    assert PooledCapacity(1).fewest(np.array([4.2])).tolist() == [5.0]  # without shares: a line
