import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forecasting.reconcile import reconciled

amounts = st.floats(0, 1e6)
spreads = st.floats(0.01, 1e6)


def test_by_hand():
    # 10 are missing; variances 1, 3 and, of the total, 6: parts move by 1 and 3
    parts = reconciled(np.array([[20.0], [30.0]]), np.array([60.0]),
                       np.array([[1.0], [3.0]]), np.array([6.0]))  # fmt: skip
    np.testing.assert_allclose(parts, [[21.0], [33.0]])


def test_the_generalised_least_squares_it_is_the_closed_form_of():
    rng = np.random.default_rng(0)
    parts, variances = rng.uniform(50, 100, (4, 1)), rng.uniform(1, 5, (4, 1))
    total, spread = np.array([330.0]), np.array([2.0])
    summing = np.vstack([np.ones(4), np.eye(4)])
    weight = np.diag(1 / np.concatenate([spread, variances[:, 0]]))
    said = np.concatenate([total, parts[:, 0]])
    best = np.linalg.solve(summing.T @ weight @ summing, summing.T @ weight @ said)
    np.testing.assert_allclose(reconciled(parts, total, variances, spread)[:, 0], best)


@settings(max_examples=60, deadline=None)
@given(
    arrays(float, (3, 2), elements=amounts), arrays(float, 2, elements=amounts),
    arrays(float, (3, 2), elements=spreads), arrays(float, 2, elements=spreads),
)  # fmt: skip
def test_parts_are_never_negative_and_the_sum_lies_between_both(parts, total, v, v_total):
    moved = reconciled(parts, total, v, v_total)
    assert np.all(moved >= 0) and np.all(np.isfinite(moved))
    ends = np.sort([parts.sum(axis=0), total], axis=0)
    slack = 1e-6 * (1 + ends[1])
    assert np.all(moved.sum(axis=0) >= ends[0] - slack)
    assert np.all(moved.sum(axis=0) <= ends[1] + slack)
