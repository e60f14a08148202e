"""Ways between regions that are closed: nobody goes there, and the rest goes on as if they lay far
apart. The stepwise reference has them too (``test_reference``)."""

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.engine.run import simulate
from simulation.engine.stream_run import simulate_stream
from simulation.errors import InvariantViolated, SimulationError
from simulation.faults import Crash, RegionOutage
from simulation.fleet import ROUTERS, KvLink, Routing, Tier
from simulation.invariants import check_invariants
from simulation.policies.chiron import Chiron
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.static import Static
from simulation.policies.wrappers.observation_log import ObservationLog
from simulation.policy import Actions
from simulation.results import NO_WAY, REASONS, TOO_LONG
from simulation.stream.stream import Stream
from tests.simulation.builders import fleet, pool, profile, trace

CLOSED = np.inf
APART = [[0.0, CLOSED], [CLOSED, 0.0]]
TIERS = (
    Tier("t", ttft_s=1.0),
    Tier("hour", e2e_s=40.0, deferrable=True),
    Tier("day", deferrable=True, priority_after_s=8.0),
)
NAMES = tuple(tier.name for tier in TIERS)


class Breathing(Static):
    """Grows and shrinks by an instance a pool in turn, to none at times, and sends by shares."""

    def __init__(self, counts, shares):
        super().__init__(counts, interval_s=4.0)
        self.shares = shares

    def decide(self, observation):
        now = int(observation.time_s / self.interval_s)
        targets = np.maximum(super().decide(observation) + (now % 3) - 1, 0)
        return Actions(targets, shares=self.shares if now % 2 else None)


def random_fleet(rng, wire, **how):
    """Of two models in every region, now and then with prefill and decode apart."""
    regions = tuple("abc"[: len(wire)])
    (apart, caches), pools = rng.random(2) < 0.4, []
    for model, region in product("mk", regions):
        prof = profile(
            kv=int(rng.integers(100, 600)),
            max_batch=int(rng.integers(1, 12)),
            budget=int(rng.integers(8, 100)),
        )
        same = {"model": model, "region": region, "startup_s": 2.0}
        caching = {"prefix_cache": bool(caches), **same}
        if apart:
            pools.append(pool(prof, role="prefill", link=KvLink(1.0, 4096.0), **caching))
        pools.append(pool(prof, role="decode", **same) if apart else pool(prof, **caching))
    return fleet(*pools, regions=regions, tiers=TIERS, latency=wire, **how)


def random_routing(rng):
    return Routing(
        region_threshold=float(rng.choice([0.05, 0.3, 0.7])),
        sees=str(rng.choice(["queues", "memory"])),
        instance=str(rng.choice(ROUTERS)),
        endpoint=str(rng.choice(["together", "least-memory"])),
    )


def random_trace(rng, regions, n=150):
    arrivals = np.sort(np.floor(rng.uniform(0, rng.choice([5.0, 40.0]), n) * 256) / 256)
    lists = [tuple(range(int(k))) for k in rng.integers(1, 8, n)]  # prompts that begin alike
    return trace(
        arrivals, [8 * len(ids) for ids in lists], rng.integers(1, 30, n),
        model=rng.integers(0, 2, n), region=rng.integers(0, len(regions), n),
        tier=rng.integers(0, 3, n), models=("m", "k"), regions=regions, tiers=NAMES,
        blocks=(lists, 8),
    )  # fmt: skip


def places(result):
    """The region of each request's pool, -1: nowhere."""
    names = [region.name for region in result.fleet.regions]
    of_pool = [names.index(pool.region) for pool in result.fleet.pools]
    return np.array([*of_pool, -1])[result.requests.pool]


@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_no_request_is_served_over_a_closed_way(seed, regions):
    """Whatever the policy wants, full, failed and empty regions, and deferred requests."""
    rng = np.random.default_rng(seed)
    wire = rng.integers(0, 16, (regions, regions)) / 256
    wire[rng.random(wire.shape) < 0.5] = CLOSED
    wire[np.diag_indices(regions)] = 0.0
    served = random_fleet(
        rng, wire, routing=random_routing(rng), retries=3,
        faults=(Crash(0, float(rng.uniform(0, 30))), RegionOutage("a", 20.0, 25.0)),
    )  # fmt: skip
    counts = rng.integers(0, 3, len(served.pools))
    shares = rng.integers(0, 3, (2, regions, regions)).astype(float)
    requests = random_trace(rng, tuple("abc"[:regions]))
    result = simulate(requests, served, Breathing(counts, shares), duration_s=60.0)
    place = places(result)
    there = place >= 0
    assert np.isfinite(wire[requests.region[there], place[there]]).all()


@pytest.mark.parametrize("seed", range(40))
def test_closed_regions_are_fleets_of_their_own(seed):
    """To the last bit, NIW queues, planned shares, faults and what policies see included."""
    rng = np.random.default_rng(seed)
    routing, regions = random_routing(rng), ("a", "b")
    lost, at_s = int(rng.integers(4)), float(rng.uniform(1, 20))
    crash = Crash(lost, at_s)
    both = random_fleet(rng, np.array(APART), routing=routing, faults=(crash,), retries=3)
    counts = rng.integers(0, 3, len(both.pools))
    shares = rng.integers(0, 3, (2, 2, 2)).astype(float)
    requests = random_trace(rng, regions)
    seen = ObservationLog(Breathing(counts, shares), signals=False)
    together = simulate(requests, both, seen, duration_s=60.0, interval_s=5.0)
    for r, name in enumerate(regions):
        of_it = np.array([pool.region == name for pool in both.pools])
        alone = fleet(
            *(pool for pool, its in zip(both.pools, of_it, strict=True) if its),
            regions=(name,), tiers=TIERS, routing=routing, retries=3,
            faults=(Crash(int(of_it[:lost].sum()), at_s),) if of_it[lost] else (),
        )  # fmt: skip
        of_region = requests.region == r
        rows = requests.rows(of_region)
        its = trace(
            rows.arrival_s, rows.input_tokens, rows.output_tokens, model=rows.model, tier=rows.tier,
            models=requests.models, regions=(name,), tiers=NAMES,
            blocks=([tuple(range(k // 8)) for k in rows.input_tokens], 8),
        )  # fmt: skip
        watched = ObservationLog(Breathing(counts[of_it], shares[:, :1, :1]), signals=False)
        result = simulate(its, alone, watched, duration_s=60.0, interval_s=5.0)
        for column in ("outcome", "reason", "ttft_s", "tbt_s", "e2e_s", "last_token_s"):
            part = getattr(together.requests, column)[of_region]
            np.testing.assert_array_equal(part, getattr(result.requests, column))
        for column in ("ready", "utilisation", "waiting", "held", "arrived_tokens"):
            part = getattr(together.series, column)[of_it]
            np.testing.assert_array_equal(part, getattr(result.series, column))
        for now, then in zip(seen.seen, watched.seen, strict=True):
            for column in ("ready", "waiting", "deferred", "load", "asked_tps"):
                part = getattr(now, column)[of_it]
                np.testing.assert_array_equal(part, getattr(then, column))


@pytest.mark.parametrize("policy", [UnifiedReactive, partial(Chiron, (40.0, 15.0))])
@pytest.mark.parametrize("seed", range(4))
def test_policies_see_closed_regions_as_fleets_of_their_own(policy, seed):
    """Chiron's batch instances answer for the queue of the regions that requests go between."""
    rng = np.random.default_rng(seed)
    small = profile(kv=400, max_batch=4, budget=32)
    kinds = (("t",), None, ("hour", "day"))
    pools = [
        pool(small, model=model, region=region, tiers=takes, startup_s=2.0)
        for model, region, takes in product("mk", "ab", kinds)
    ]
    requests = random_trace(rng, ("a", "b"), n=400)
    how = {"tiers": TIERS, "latency": None}
    both = fleet(*pools, regions=("a", "b"), **how | {"latency": APART})
    together = simulate(requests, both, policy(interval_s=4.0), duration_s=60.0, interval_s=5.0)
    grew = False
    for r, name in enumerate("ab"):
        rows = requests.rows(requests.region == r)
        its = trace(
            rows.arrival_s, rows.input_tokens, rows.output_tokens, model=rows.model, tier=rows.tier,
            models=requests.models, regions=(name,), tiers=NAMES,
        )  # fmt: skip
        alone = fleet(*(pool for pool in pools if pool.region == name), regions=(name,), **how)
        result = simulate(its, alone, policy(interval_s=4.0), duration_s=60.0, interval_s=5.0)
        of_region = [p for p, pool in enumerate(pools) if pool.region == name]
        np.testing.assert_array_equal(together.series.ready[of_region], result.series.ready)
        grew |= bool(np.ptp(result.series.ready, axis=1).max() > 0)
    assert grew


def test_requests_out_of_reach_are_rejected_and_the_longest_go_by_open_ways():
    """Model k has no pool that a may send to, and the pool of m that a reaches is the smaller."""
    small, large = profile(kv=100), profile(kv=1000)
    served = fleet(
        pool(small, model="m", region="a"), pool(large, model="m", region="b"),
        pool(large, model="k", region="b"), regions=("a", "b"), latency=APART,
    )  # fmt: skip
    requests = trace(
        [0.0, 0.0, 0.0, 0.0, 0.0], [10, 10, 200, 200, 10], 2, model=[0, 1, 0, 0, 1],
        region=[0, 0, 0, 1, 1], models=("m", "k"), regions=("a", "b"),
    )  # fmt: skip
    result = simulate(requests, served, Static([1, 1, 1]))
    reasons = [REASONS[i] if i >= 0 else "" for i in result.requests.reason]
    assert reasons == ["", NO_WAY, TOO_LONG, "", ""]
    assert result.reject_reasons == {NO_WAY: 1, TOO_LONG: 1}


def test_a_stream_keeps_to_closed_ways_too():
    rng = np.random.default_rng(7)
    wire = np.array([[0.0, 1 / 64], [CLOSED, 0.0]])
    served, requests = random_fleet(rng, wire), random_trace(rng, ("a", "b"), n=600)
    policy = Breathing([1] * len(served.pools), np.ones((2, 2, 2)))
    in_one_go = simulate(requests, served, policy, duration_s=60.0)
    pieces = simulate_stream(Stream.of(requests), served, policy, duration_s=60.0, piece=50)
    for column in ("iterations", "idle_s", "prefill_s", "decode_s"):
        at_once, other = getattr(in_one_go.totals, column), getattr(pieces.totals, column)
        np.testing.assert_array_equal(at_once, other)


def test_a_result_that_breaks_the_law_is_a_bug():
    open_ways = fleet(*(pool(region=r) for r in "ab"), regions=("a", "b"))
    requests = trace(np.arange(5.0), 32, 40, regions=("a", "b"))
    shares = np.array([[[0.0, 1.0], [0.0, 1.0]]])
    result = simulate(requests, open_ways, Breathing([1, 1], shares), duration_s=60.0)
    assert (places(result) == 1).any()
    closed = fleet(*open_ways.pools, regions=("a", "b"), latency=APART)
    object.__setattr__(result, "fleet", closed)
    with pytest.raises(InvariantViolated, match="closed"):
        check_invariants(result)


def test_regions_that_requests_go_between_are_one_island():
    """a to b one way and b to c the other, so that what c spares reaches a by b's; d is alone."""
    wire = np.full((4, 4), CLOSED)
    wire[np.diag_indices(4)] = 0.0
    wire[0, 1] = wire[2, 1] = 0.5
    pools = [pool(region=r) for r in "abcda"]
    assert fleet(*pools, regions=tuple("abcd"), latency=wire).islands.tolist() == [0, 0, 0, 3, 0]


@pytest.mark.parametrize("wire", [[[CLOSED, 0.0], [0.0, 0.0]], [[0.0, np.nan], [0.0, 0.0]]])
def test_home_is_never_closed(wire):
    served = fleet(*(pool(region=r) for r in "ab"), regions=("a", "b"), latency=wire)
    with pytest.raises(SimulationError, match="infinite where no request may go"):
        simulate(trace([0.0], 1, 1, regions=("a", "b")), served, Static([1, 1]))
