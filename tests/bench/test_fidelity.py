"""The simulator beside an independent one and closed forms: a part of what the bench does."""

from math import exp

import numpy as np
import pytest

from bench.fidelity import md1_wait_quantile, mmc_wait_quantile, queueing, splitwise
from tests.shared_folder import SHARED, shared


@pytest.mark.parametrize("scenario", ["mixed_azure_conv", "pd_azure_conv"])
def test_requests_end_when_splitwise_sim_says(scenario):
    shared(SHARED / "reference")
    for row in splitwise(scenario):
        assert row["median_request_error"] < 0.002
        assert max(row["p50_error"], row["p95_error"], row["p99_error"]) < 0.002


def test_waits_in_m_d_1_by_definition():
    """P(W <= t) below one service time is (1 - load) exp(load t)."""
    t = md1_wait_quantile(0.7, 0.5)
    assert t < 1
    assert 0.3 * np.exp(0.7 * t) == pytest.approx(0.5)
    assert md1_wait_quantile(0.7, 0.3) == 0.0


def test_plain_queues_agree_with_closed_forms():
    for row in queueing(seeds=4, requests=20_000):
        assert row["mean_inside"] and row["p95_inside"]


def test_waits_in_m_m_c():
    assert mmc_wait_quantile(1, 0.5, 1.0, 0.4) == 0.0
    t = mmc_wait_quantile(1, 0.5, 1.0, 0.9)
    assert 0.5 * exp(-0.5 * t) == pytest.approx(0.1)
    assert mmc_wait_quantile(2, 2.0, 1.0, 0.5) == float("inf")
    with pytest.raises(ValueError, match="0 <= p < 1"):
        mmc_wait_quantile(1, 0.5, 1.0, 1.0)
