"""The compiled engine equals a plain one-iteration-at-a-time model, to the last bit.

All times are binary fractions, so ties between arrivals and iteration boundaries are real ones.
"""

import numpy as np
import pytest

from simulation.engine import simulate
from simulation.fleet import Routing
from simulation.policies.flat import Flat
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.reference import Instance, Job, serve


def random_requests(rng, most):
    n = int(rng.integers(1, most))
    arrivals = np.sort(rng.uniform(0, rng.choice([0.5, 4.0, 30.0]), n))
    if rng.random() < 0.7:
        arrivals = np.floor(arrivals * 256) / 256
    isl = rng.integers(1, rng.choice([4, 60, 200]), n)
    osl = rng.integers(1, rng.choice([3, 20, 90]), n)
    return arrivals, isl, osl


def random_profile(rng, least_kv):
    return profile(
        alpha=rng.integers(1, 64) / 1024,
        beta=rng.integers(0, 8) / 4096,
        gamma=rng.integers(1, 64) / 1024,
        delta=rng.integers(0, 8) / 8192,
        max_batch=int(rng.integers(1, 12)),
        budget=int(rng.integers(1, 100)),
        kv=int(rng.integers(0, 200)) + least_kv,
    )


def assert_same(result, jobs, instances):
    log, totals = result.requests, result.totals
    np.testing.assert_array_equal(log.first_token_s, [job.first for job in jobs])
    np.testing.assert_array_equal(log.last_token_s, [job.last for job in jobs])
    assert totals.iterations.sum() == sum(i.iterations for i in instances)
    assert totals.preemptions.sum() == sum(i.preemptions for i in instances)
    assert totals.prefill_s.sum() == pytest.approx(sum(i.prefill_s for i in instances))
    assert totals.decode_s.sum() == pytest.approx(sum(i.decode_s for i in instances))


@pytest.mark.parametrize("block", range(10))
def test_one_instance(block):
    preemptions = 0
    for seed in range(block * 50, block * 50 + 50):
        rng = np.random.default_rng(seed)
        arrivals, isl, osl = random_requests(rng, 40)
        prof = random_profile(rng, int((isl + osl).max()))
        instances = [Instance(prof)]
        jobs = [Job(*row) for row in zip(arrivals, isl.tolist(), osl.tolist(), strict=True)]
        serve(instances, jobs)
        result = simulate(
            trace(arrivals, isl, osl), fleet(pool(prof)), Flat([1]), duration_s=2048.0
        )
        assert_same(result, jobs, instances)
        preemptions += instances[0].preemptions
    assert preemptions > 0


@pytest.mark.parametrize("block", range(10))
def test_several_regions_and_instances(block):
    """Routing sees the progress inside runs of equal iterations, and the wire takes its time."""
    away = 0
    for seed in range(block * 30, block * 30 + 30):
        rng = np.random.default_rng(10_000 + seed)
        arrivals, isl, osl = random_requests(rng, 60)
        regions = int(rng.integers(1, 4))
        home = rng.integers(0, regions, len(arrivals))
        counts = rng.integers(1, 4, regions)
        profiles = [random_profile(rng, int((isl + osl).max())) for _ in range(regions)]
        wire = rng.integers(1, 64, (regions, regions)) / 256
        wire[np.diag_indices(regions)] = 0.0
        threshold = float(rng.choice([0.05, 0.3, 0.7]))
        instances = [
            Instance(profiles[r], r) for r in range(regions) for _ in range(int(counts[r]))
        ]
        jobs = [
            Job(*row)
            for row in zip(arrivals, isl.tolist(), osl.tolist(), home.tolist(), strict=True)
        ]
        serve(instances, jobs, wire, threshold)
        names = tuple("abc"[:regions])
        result = simulate(
            trace(arrivals, isl, osl, region=home, regions=names),
            fleet(
                *(pool(profiles[r], region=names[r], startup_s=1.0) for r in range(regions)),
                regions=names,
                latency=wire,
                routing=Routing(region_threshold=threshold),
            ),
            Flat(counts),
            duration_s=2048.0,
        )
        assert_same(result, jobs, instances)
        np.testing.assert_array_equal(result.requests.pool, [job.region for job in jobs])
        away += sum(job.region != job.home for job in jobs)
        wires = wire[home, result.requests.pool]
        np.testing.assert_array_equal(
            result.requests.ttft_s, result.requests.first_token_s + wires - arrivals
        )
    assert away > 0
