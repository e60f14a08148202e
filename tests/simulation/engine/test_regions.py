"""Between regions: planned shares, queues that the router sees, and what policies see of both."""

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import KvLink, Routing, Tier
from simulation.policies.static import Static
from simulation.policies.wrappers.observation_log import ObservationLog
from simulation.policy import Actions
from tests.simulation.builders import fleet, linear_seconds, pool, profile, trace

REGIONS = ("east", "west")
WIRE = [[0.0, 1 / 32], [1 / 32, 0.0]]
ROOMY = profile(max_batch=64, budget=64, kv=1 << 20)  # memory never fills


class Shared(Static):
    """A flat fleet with shares of regions to keep."""

    def __init__(self, counts, shares):
        super().__init__(counts)
        self.shares = np.array(shares, float)

    def decide(self, observation):
        return Actions(super().decide(observation), shares=self.shares)


def two_regions(**how):
    return fleet(
        pool(ROOMY, region="east"),
        pool(ROOMY, region="west"),
        regions=REGIONS,
        latency=WIRE,
        routing=Routing(**how),
    )


def from_east(n, every_s, isl=32, osl=4, start=0.0):
    return trace(start + every_s * np.arange(n), isl, osl, region=0, regions=REGIONS)


def test_a_region_with_waiting_requests_never_watches_an_idle_one():
    """A third more than one instance prefills: 64 tokens an iteration, 32 a request."""
    requests = from_east(2000, every_s=linear_seconds(ROOMY, 0, 64) * 3 / 8)
    seen = simulate(requests, two_regions(), Static([1, 1]))
    blind = simulate(requests, two_regions(sees="memory"), Static([1, 1]))
    assert np.bincount(seen.requests.pool).min() > 500
    assert np.bincount(blind.requests.pool).tolist() == [2000]
    worst = {name: run.requests.ttft_s.max() for name, run in (("seen", seen), ("blind", blind))}
    assert worst["seen"] < 1.0 < 10.0 < worst["blind"]


def test_shares_are_by_model_and_home():
    """Of two models only one is sent away; a row of zeros is the rule of E4."""
    n = 400
    arrivals = 61.0 + np.arange(n) * 2.0
    requests = trace(arrivals, 8, 2, model=np.arange(n) % 2, region=np.arange(n) // 2 % 2,
                     models=("a", "b"), regions=REGIONS)  # fmt: skip
    pools = [pool(ROOMY, model=m, region=r) for m in ("b", "a") for r in REGIONS]
    served = fleet(*pools, regions=REGIONS, latency=WIRE)
    assert served.models == ("b", "a")
    shares = [[[0, 0], [0, 0]], [[0, 2], [1, 1]]]  # of a: all of east's, half of west's
    result = simulate(requests, served, Shared([1] * 4, shares))
    where = result.requests.pool % 2
    home, model = requests.region, requests.model
    assert (where[model == 1] == home[model == 1]).all()
    assert (where[(model == 0) & (home == 0)] == 1).all()
    assert where[(model == 0) & (home == 1)].mean() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("sees", ["queues", "memory"])
def test_a_region_without_an_instance_gives_way(sees):
    requests = from_east(100, every_s=1.0, start=61.0)
    shares = [[[0.0, 1.0], [0.0, 1.0]]]
    served = simulate(requests, two_regions(sees=sees), Shared([1, 0], shares)).requests
    assert (served.pool == 0).all()
    assert (served.outcome == 0).all()


@pytest.mark.parametrize(
    "shares", [[[1.0, 0.0]], [[[-1.0, 2.0], [0.0, 1.0]]], [[[np.nan, 1], [0, 1]]]]
)
def test_bad_shares_are_refused(shares):
    with pytest.raises(SimulationError, match="shares"):
        simulate(from_east(300, every_s=1.0), two_regions(), Shared([1, 1], shares))


def test_deferred_requests_wait_while_decode_memory_is_full():
    """Prompts alone fill nothing; the decode instance is 70% full of an answer that goes on."""
    tiers = (Tier("fast"), Tier("night", deferrable=True))
    prefill = profile(kv=1 << 20, budget=4096)
    decode = profile(alpha=1.0, beta=0.0, kv=1000, budget=4096)
    apart = fleet(
        pool(prefill, role="prefill", link=KvLink(1.0, 1e9)),
        pool(decode, role="decode"),
        tiers=tiers,
    )
    requests = trace([0.0, 5.0], [700, 10], [200, 2], tier=[0, 1], tiers=("fast", "night"))
    result = simulate(requests, apart, Static([1, 1]), duration_s=600.0)
    first, last = result.requests.first_token_s, result.requests.last_token_s
    assert first[1] >= last[0] > 190.0


def test_deferred_requests_do_not_join_a_queue():
    tiers = (Tier("fast"), Tier("night", deferrable=True))
    n = 400  # 64 tokens an iteration, and twice as many come
    every_s = linear_seconds(ROOMY, 0, 64) / 4
    tier = np.arange(n) % 10 == 0
    requests = trace(np.arange(n) * every_s, 32, 2, tier=tier, tiers=("fast", "night"))
    result = simulate(requests, fleet(pool(ROOMY), tiers=tiers), Static([1]), duration_s=600.0)
    first = result.requests.first_token_s
    assert first[tier][1:].min() > first[~tier].max()


def test_load_says_what_would_wait():
    policy = ObservationLog(Static([1], interval_s=1.0), signals=False)
    requests = trace(np.zeros(32), 32, 2)
    simulate(requests, fleet(pool(ROOMY)), policy, duration_s=5.0)
    slow = profile(gamma=16.0, max_batch=4, budget=64, kv=1 << 20)
    stuck = ObservationLog(Static([1], interval_s=1.0), signals=False)
    simulate(requests, fleet(pool(slow)), stuck, duration_s=5.0)
    assert policy.seen[-1].load[0] == 0.0
    assert stuck.seen[-1].utilisation[0] < 0.01
    # 32 requests for a batch of 4; 32 x 32 tokens, and one each, for a budget of 64.
    assert stuck.seen[-1].load[0] == max(32 / 4, 32 * 33 / 64)


def test_asked_tokens_are_those_of_home_wherever_they_are_served():
    tiers = (Tier("fast"), Tier("night", deferrable=True))
    served = fleet(
        *(pool(ROOMY, model=m, region=r) for m in "ab" for r in REGIONS),
        regions=REGIONS, latency=WIRE, tiers=tiers,
    )  # fmt: skip
    policy = ObservationLog(Shared([1] * 4, [[[0, 1], [0, 1]]] * 2), signals=False)
    requests = trace(
        [61.0, 62.0, 63.0, 64.0, 130.0], [10, 20, 30, 40, 50], 2,
        model=[0, 1, 1, 1, 0], region=[0, 0, 1, 1, 1], tier=[0, 0, 0, 1, 0],
        models=("a", "b"), regions=REGIONS, tiers=("fast", "night"),
    )  # fmt: skip
    simulate(requests, served, policy, duration_s=240.0)
    asked = [np.round(60 * seen.asked_tps).tolist() for seen in policy.seen]
    assert asked == [[0, 0, 0, 0], [10, 0, 20, 30], [0, 50, 0, 0]]
