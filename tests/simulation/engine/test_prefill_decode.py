"""Prefill and decode apart, prompts first, and the routers, worked out by hand."""

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import KvLink, Routing
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.static import Static
from tests.simulation.builders import fleet, linear_seconds, pool, profile, trace
from tests.simulation.scripted_policies import Asking

LINK = KvLink(kv_bytes_per_token=1.0, bytes_s=64.0)


def apart(prof, link=LINK, **how):
    return fleet(pool(prof, role="prefill", link=link, **how), pool(prof, role="decode", **how))


def run(served, arrival, isl, osl, counts, **kwargs):
    kwargs = {"duration_s": 60.0, **kwargs}
    return simulate(trace(arrival, isl, osl), served, Static(counts), **kwargs)


def test_the_kv_cache_travels_between_first_and_second_token():
    prof = profile()
    log = run(apart(prof), [1.0, 1.0], [32, 32], [5, 1], [1, 1]).requests
    first = 1.0 + linear_seconds(prof, 0, 64)
    assert log.first_token_s.tolist() == [first, first]
    assert log.last_token_s.tolist() == [first + 32 / 64 + 4 * linear_seconds(prof, 1, 0), first]
    assert log.pool.tolist() == [1, 0]


def test_what_leaves_after_a_decision_has_the_share_of_the_link_that_it_says():
    prof = profile(alpha=0.25, beta=0.0, max_batch=1)
    policy = Asking([1, 2], {"targets": [1, 2], "link_share": [0.5, 1.0]}, every=4.0)
    log = simulate(trace([1.0, 5.0], [32, 32], [2, 2]), apart(prof), policy, duration_s=60.0)
    travelled = log.requests.last_token_s - 0.25 - log.requests.first_token_s
    assert travelled.tolist() == [0.5, 1.0]
    none = Asking([1, 2], {"targets": [1, 2], "link_share": [0.0, 1.0]})
    with pytest.raises(SimulationError, match="link_share"):
        simulate(trace([1.0], [32], [2]), apart(prof), none, duration_s=100.0)


@pytest.mark.parametrize(
    ("router", "taken"),
    [
        ("least-remaining", [0, 1, 1]),  # 8 + 100 tokens against 40 + 2
        ("least-pending", [0, 1, 0]),  # 8 prompt tokens and a request against 40 and one
        ("round-robin", [0, 1, 0]),
    ],
)
def test_routers(router, taken):
    """Two pools, so that the result tells the instance; both prompts are still being computed."""
    prof = profile(gamma=4.0)
    router_of = Routing(instance=router, endpoint="together")
    served = fleet(pool(prof), pool(prof), routing=router_of)
    log = run(served, [0.0, 0.25, 0.5], [8, 40, 8], [100, 2, 2], [1, 1]).requests
    assert log.pool.tolist() == taken


def test_a_fleet_of_roles_that_cannot_serve_is_refused():
    with pytest.raises(SimulationError, match="needs a decode pool"):
        fleet(pool(role="prefill", link=LINK))
    with pytest.raises(SimulationError, match="needs a link"):
        fleet(pool(role="prefill"), pool(role="decode"))
    with pytest.raises(SimulationError, match="no router 'fastest'"):
        fleet(routing=Routing(instance="fastest"))
    with pytest.raises(SimulationError, match="batching one of chunked, whole, alone"):
        fleet(pool(batching="none"))


def test_each_role_scales_on_its_own():
    prof = profile(kv=600)
    n = 400
    arrivals = np.cumsum(np.random.default_rng(0).exponential(0.05, n))
    served = apart(prof, KvLink(1.0, 1e6), initial=1, minimum=1, startup_s=1.0)
    result = simulate(trace(arrivals, 100, 60), served, UnifiedReactive())
    assert (result.requests.outcome == 0).all()
    assert result.series.ready[1].max() > result.series.ready[0].max() >= 1


def test_without_decode_instances_requests_wait_for_one():
    prof = profile()
    served = fleet(
        pool(prof, role="prefill", link=LINK, minimum=1),
        pool(prof, role="decode", initial=0, startup_s=5.0),
    )
    result = simulate(trace([0.0], 8, 4), served, UnifiedReactive(), duration_s=60.0)
    assert result.requests.outcome[0] == 0
    assert 15.0 < result.requests.last_token_s[0] < 21.0
