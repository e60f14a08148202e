"""What a request takes before its first iteration moves its own times and nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.fleet import KvLink, Tier
from simulation.metrics import meets_slo
from simulation.policies.static import Static
from simulation.sizing.batch_queue import PoolShape, evaluate_pool
from simulation.sizing.trial import RequestDraws, Trial, pool_of
from simulation.sizing.workload import Workload
from tests.simulation.builders import fleet, pool, profile, trace

START = 1 / 8
PLAIN = profile(max_batch=64, budget=64, kv=1 << 20)
LATER = replace(PLAIN, start_s=START)
LINK = KvLink(1.0, 1 << 20)


def served(first, then=None):
    """Forty requests, together or with their answers on instances of ``then``."""
    requests = trace(np.arange(40) / 4, 32, 8)
    if then is None:
        return simulate(requests, fleet(pool(first)), Static([1]))
    pools = pool(first, role="prefill", link=LINK), pool(then, role="decode")
    return simulate(requests, fleet(*pools), Static([1, 1]))


@pytest.mark.parametrize(("plain", "later"), [((PLAIN,), (LATER,)), ((PLAIN,) * 2, (LATER, PLAIN))])
def test_a_start_shifts_ttft_and_whole_requests_and_nothing_else(plain, later):
    before, after = served(*plain).requests, served(*later).requests
    assert np.array_equal(after.ttft_s, before.ttft_s + START)
    assert np.array_equal(after.e2e_s, before.e2e_s + START)
    for name in ("tbt_s", "first_token_s", "last_token_s"):
        assert np.array_equal(getattr(after, name), getattr(before, name))


def test_limits_count_it_in():
    limit = float(served(PLAIN).requests.ttft_s.max())
    tier = Tier("t", ttft_s=limit + START / 2)
    requests = trace(np.arange(40) / 4, 32, 8)
    runs = [simulate(requests, fleet(pool(p), tiers=(tier,)), Static([1])) for p in (PLAIN, LATER)]
    assert meets_slo(runs[0]).all() and not meets_slo(runs[1]).all()


@pytest.mark.parametrize("role", ["both", "prefill"])
def test_closed_forms_and_simulation_count_it_alike(role):
    work = Workload(np.full(64, 32, np.int32), np.full(64, 8, np.int32), burstiness=1.0).at(2.0)
    plain, later = (evaluate_pool(speed, work, PoolShape(role)) for speed in (PLAIN, LATER))
    assert later.ttft.mean == pytest.approx(plain.ttft.mean + START)
    assert later.ttft.quantile(0.9) == pytest.approx(plain.ttft.quantile(0.9) + START)
    draws = RequestDraws(([32], [8]), seed=1, requests=2000)
    trial = Trial((pool_of(LATER),), draws, Tier("t"))
    seen = trial.at(2.0).requests
    both = evaluate_pool(LATER, work)
    assert np.nanmean(seen.ttft_s) == pytest.approx(both.ttft.mean, rel=0.05)
