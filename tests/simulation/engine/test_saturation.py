"""The engine beside the stepwise model near and past saturation, with batches of many."""

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.policies.static import Static
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.engine.reference import Instance, serve
from tests.simulation.engine.test_reference import assert_same, jobs_of

REQUESTS = 500
PROFILE = profile(
    alpha=1 / 64, beta=1 / 8192, gamma=1 / 64, delta=1 / 16384, max_batch=128, budget=512,
    kv=100_000,
)  # fmt: skip


def compared(rate, batching):
    """Replay by both: arrivals on a binary grid, so that ties are real; answers of many lengths."""
    rng = np.random.default_rng([60_000, 1])
    arrivals = np.floor(np.cumsum(rng.exponential(1 / rate, REQUESTS)) * 256) / 256
    isl, osl = rng.integers(20, 400, REQUESTS), rng.integers(1, 160, REQUESTS)
    instances = [Instance(PROFILE, batching=batching) for _ in range(2)]
    jobs = jobs_of(arrivals, isl, osl)
    serve(instances, jobs)
    served = fleet(pool(PROFILE, batching=batching))
    result = simulate(trace(arrivals, isl, osl), served, Static([2]), duration_s=8192.0)
    assert_same(result, jobs, instances)
    return result


@pytest.mark.parametrize("batching", ["chunked", "whole"])
@pytest.mark.parametrize("load", [0.9, 0.98, 1.3])
def test_near_and_past_saturation_with_batches_beyond_fifty(load, batching):
    endless = compared(1e9, "chunked").requests.last_token_s.max()
    result = compared(load * REQUESTS / float(endless), batching)
    if load > 1:
        assert result.series.batch.max() > 50
