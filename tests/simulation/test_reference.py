"""The compiled engine equals a plain one-iteration-at-a-time model of an instance."""

import numpy as np
import pytest

from simulation.engine import simulate
from simulation.fleet import Tier
from simulation.policies.flat import Flat
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.reference import serve


def random_case(seed):
    """Arrivals on a grid of 1/256 s as often as not, so that ties with boundaries happen."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 40))
    arrivals = np.sort(rng.uniform(0, rng.choice([0.5, 4.0, 30.0]), n))
    if rng.random() < 0.7:
        arrivals = np.floor(arrivals * 256) / 256
    isl = rng.integers(1, rng.choice([4, 60, 200]), n)
    osl = rng.integers(1, rng.choice([3, 20, 90]), n)
    # A batch is never larger than its token budget.
    prof = profile(
        alpha=rng.integers(1, 64) / 1024,
        beta=rng.integers(0, 8) / 4096,
        gamma=rng.integers(1, 64) / 1024,
        delta=rng.integers(0, 8) / 8192,
        max_batch=int(rng.integers(1, 12)),
        budget=int(rng.integers(1, 100)),
        kv=int(rng.integers(0, 200)) + int((isl + osl).max()),
    )
    low = rng.random(n) < rng.choice([0.0, 0.4])
    return prof, arrivals, isl, osl, low


@pytest.mark.parametrize("block", range(20))
def test_engine_equals_reference(block):
    preemptions = 0
    for seed in range(block * 50, block * 50 + 50):
        prof, arrivals, isl, osl, low = random_case(seed)
        # Low requests are deferrable ones past the NIW queue: none is old enough to be, so the
        # reference's two queues are exercised through priority_after_s = 0 only when not low.
        expected = serve(prof, list(zip(arrivals, isl.tolist(), osl.tolist(), strict=True)))
        result = simulate(trace(arrivals, isl, osl), fleet(pool(prof)), Flat([1]), duration_s=40.0)
        log, totals = result.requests, result.totals
        np.testing.assert_array_equal(log.first_token_s, [j.first for j in expected.jobs])
        np.testing.assert_array_equal(log.last_token_s, [j.last for j in expected.jobs])
        assert totals.iterations[0] == expected.iterations
        assert totals.preemptions[0] == expected.preemptions
        if max(j.last for j in expected.jobs) <= 40.0:
            assert totals.prefill_s[0] == pytest.approx(expected.prefill_s)
            assert totals.decode_s[0] == pytest.approx(expected.decode_s)
        preemptions += expected.preemptions
    assert preemptions > 0
