"""The engine beside the stepwise model where fleets are strained: near and past saturation, batches
of many, KV memory that binds, and prefill and decode pools of which one holds the other up.

``../shared/reference`` has no such case: its memory never binds, and its load is at most 70%.
"""

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.fleet import KvLink
from simulation.policies.static import Static
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.engine.reference import Instance, Job, serve
from tests.simulation.engine.test_reference import assert_same

REQUESTS = 500
TIMES = {"alpha": 1 / 64, "beta": 1 / 8192, "gamma": 1 / 64, "delta": 1 / 16384}


def requests(seed, rate):
    """Arrivals on a binary grid, so that ties are real; answers of many lengths."""
    rng = np.random.default_rng([60_000, seed])
    arrivals = np.floor(np.cumsum(rng.exponential(1 / rate, REQUESTS)) * 256) / 256
    return arrivals, rng.integers(20, 400, REQUESTS), rng.integers(1, 160, REQUESTS)


def saturated(prof, instances, seed):
    """Requests/s that the fleet completes of an endless queue."""
    arrivals, isl, osl = requests(seed, 1e9)
    served = simulate(
        trace(arrivals, isl, osl), fleet(pool(prof)), Static([instances]), duration_s=8192.0
    )
    return REQUESTS / float(served.requests.last_token_s.max())


def compared(instances, pools, counts, arrivals, isl, osl):
    jobs = [Job(*row) for row in zip(arrivals, isl.tolist(), osl.tolist(), strict=True)]
    serve(instances, jobs)
    result = simulate(trace(arrivals, isl, osl), fleet(*pools), Static(counts), duration_s=8192.0)
    assert_same(result, jobs, instances)
    return result


@pytest.mark.parametrize("batching", ["chunked", "whole"])
@pytest.mark.parametrize("load", [0.9, 0.98, 1.3])
def test_near_and_past_saturation_with_batches_beyond_fifty(load, batching):
    prof = profile(**TIMES, max_batch=128, budget=512, kv=100_000)
    arrivals, isl, osl = requests(1, load * saturated(prof, 2, 1))
    instances = [Instance(prof, batching=batching) for _ in range(2)]
    result = compared(instances, [pool(prof, batching=batching)], [2], arrivals, isl, osl)
    if load > 1:
        assert result.series.batch.max() > 50


@pytest.mark.parametrize("load", [0.9, 1.3])
def test_kv_memory_that_binds(load):
    """Memory for eight requests, batches for many more."""
    prof = profile(**TIMES, max_batch=128, budget=512, kv=2000)
    arrivals, isl, osl = requests(2, load * saturated(prof, 3, 2))
    instances = [Instance(prof) for _ in range(3)]
    result = compared(instances, [pool(prof)], [3], arrivals, isl, osl)
    assert result.totals.preemptions.sum() > 10


@pytest.mark.parametrize("short", ["prefill", "decode"])
def test_one_of_two_pools_holds_the_other_up(short):
    """Decode memory that binds while prefill runs on; prefill past saturation before idle decodes.
    No pool lends its instances to the other: splitwise-sim's rule for overload is not ours."""
    quick = profile(**TIMES, max_batch=128, budget=512, kv=100_000)
    slow = profile(**TIMES, max_batch=128, budget=512, kv=3000)
    link = KvLink(1.0, 2.0**16, 2.0**17)
    profiles = (quick, slow) if short == "decode" else (slow, quick)
    arrivals, isl, osl = requests(3, 20.0 if short == "decode" else 60.0)
    shared = {"free": 0.0}
    instances = [Instance(profiles[0], role="prefill", link=link, shared=shared)]
    instances += [Instance(profiles[1], role="decode") for _ in range(2)]
    pools = [pool(profiles[0], role="prefill", link=link), pool(profiles[1], role="decode")]
    result = compared(instances, pools, [1, 2], arrivals, isl, osl)
    if short == "decode":
        assert result.totals.preemptions[1] > 0
    else:
        assert result.totals.prefill_s[0] > 0.5 * result.requests.last_token_s.max()
