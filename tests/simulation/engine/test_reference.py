"""The compiled engine equals a plain one-iteration-at-a-time model, to the last bit.

All times are binary fractions, so ties between arrivals and iteration boundaries are real ones;
only on curves, where the engine sums a series at once, is there rounding.
"""

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.faults import Crash, SlowInstance
from simulation.fleet import KvLink, Routing, Tier
from simulation.performance.adjusted_profile import adjust_profile
from simulation.performance.curves import NOTHING, Part, grid
from simulation.policies.static import Static
from simulation.policy import Actions
from simulation.results import REJECTED
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.engine.reference import GridTiming, Instance, Job, serve


def random_requests(rng, most):
    n = int(rng.integers(1, most))
    arrivals = np.sort(rng.uniform(0, rng.choice([0.5, 4.0, 30.0]), n))
    if rng.random() < 0.7:
        arrivals = np.floor(arrivals * 256) / 256
    isl = rng.integers(1, rng.choice([4, 60, 200]), n)
    osl = rng.integers(1, rng.choice([3, 20, 90]), n)
    return arrivals, isl, osl


def jobs_of(arrivals, isl, osl, **columns):
    """Requests of the stepwise model; ``columns``: values of other fields, one per request."""
    columns = {"isl": isl, "osl": osl} | columns
    lists = {name: np.asarray(its).tolist() if name != "blocks" else its
             for name, its in columns.items()}  # fmt: skip
    return [
        Job(arrival, **{name: its[i] for name, its in lists.items()})
        for i, arrival in enumerate(arrivals)
    ]


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


class Shared(Static):
    """A flat fleet whose router has shares to keep from the first moment on."""

    def __init__(self, counts, shares):
        super().__init__(counts, interval_s=2.0**-20)
        self.shares = shares

    def decide(self, observation):
        self.interval_s = 1e9
        return Actions(super().decide(observation), shares=self.shares[None])


def with_closed(rng, wire):
    """Seconds between regions, of which some ways are closed: each by itself, home's never."""
    closed = rng.random(wire.shape) < rng.choice([0.0, 0.3, 0.8])
    return np.where(closed & ~np.eye(len(wire), dtype=bool), np.inf, wire)


def assert_same(result, jobs, instances):
    log, totals = result.requests, result.totals
    first, last = (np.array([getattr(j, k) for j in jobs], float) for k in ("first", "last"))
    np.testing.assert_array_equal(log.first_token_s, first)
    np.testing.assert_array_equal(log.last_token_s, last)
    assert totals.iterations.sum() == sum(i.iterations for i in instances)
    assert totals.preemptions.sum() == sum(i.preemptions for i in instances)
    assert totals.prefill_s.sum() == pytest.approx(sum(i.prefill_s for i in instances))
    assert totals.decode_s.sum() == pytest.approx(sum(i.decode_s for i in instances))
    assert totals.hit_tokens.sum() == sum(i.hit for i in instances)
    assert totals.looked_up_tokens.sum() == sum(i.looked_up for i in instances)
    assert totals.evicted_tokens.sum() == sum(i.evicted for i in instances)
    assert (result.requests.outcome == REJECTED).tolist() == [job.lost for job in jobs]


@pytest.mark.parametrize(
    ("batching", "first", "seeds"),
    [*(("chunked", 50 * block, 50) for block in range(4)),
     ("whole", 30_000, 80), ("alone", 30_000, 80)],
)  # fmt: skip
def test_one_instance(batching, first, seeds):
    preemptions = 0
    for seed in range(first, first + seeds):
        rng = np.random.default_rng(seed)
        arrivals, isl, osl = random_requests(rng, 40)
        prof = random_profile(rng, int((isl + osl).max()))
        instances = [Instance(prof, batching=batching)]
        jobs = jobs_of(arrivals, isl, osl)
        serve(instances, jobs)
        served = fleet(pool(prof, batching=batching))
        result = simulate(trace(arrivals, isl, osl), served, Static([1]), duration_s=2048.0)
        assert_same(result, jobs, instances)
        preemptions += instances[0].preemptions
    assert preemptions > 0


def test_prefill_and_decode_apart():
    """Prompts on one pool, the rest on another, and KV caches that queue at the links between."""
    preemptions = queued = 0
    for seed in range(300):
        rng = np.random.default_rng(40_000 + seed)
        arrivals, isl, osl = random_requests(rng, 50)
        arrivals = np.floor(arrivals * 256) / 256
        least = int((isl + osl).max())
        profiles = [random_profile(rng, least) for _ in range(2)]
        counts = rng.integers(1, 4, 2)
        link = KvLink(1.0, float(2.0 ** rng.integers(6, 14)), float(2.0 ** rng.integers(6, 16)))
        batching = str(rng.choice(["chunked", "whole"]))
        shared = {"free": 0.0}
        instances = [
            Instance(profiles[0], role="prefill", link=link, batching=batching, shared=shared)
            for _ in range(counts[0])
        ] + [Instance(profiles[1], role="decode") for _ in range(counts[1])]
        jobs = jobs_of(arrivals, isl, osl)
        serve(instances, jobs)
        served = fleet(
            pool(profiles[0], role="prefill", link=link, batching=batching),
            pool(profiles[1], role="decode"),
        )
        result = simulate(trace(arrivals, isl, osl), served, Static(counts), duration_s=2048.0)
        assert_same(result, jobs, instances)
        assert (result.requests.pool == (osl > 1)).all()
        preemptions += sum(i.preemptions for i in instances)
        queued += sum(i.link_free > 0 for i in instances)
    assert min(preemptions, queued) > 0


def test_prefill_and_decode_apart_in_two_regions():
    """A region takes a request at once if its decode instances do too."""
    away = 0
    for seed in range(100):
        rng = np.random.default_rng(80_000 + seed)
        arrivals, isl, osl = random_requests(rng, 50)
        arrivals = np.floor(arrivals * 256) / 256
        home = rng.integers(0, 2, len(isl))
        wire = np.array([[0.0, 3 / 256], [5 / 256, 0.0]])
        wire = with_closed(np.random.default_rng(seed), wire)
        least, names = int((isl + osl).max()), ("a", "b")
        pools, instances, counts = [], [], []
        for region in range(2):
            link, shared = KvLink(1.0, float(2.0 ** rng.integers(6, 14))), {"free": 0.0}
            for role in ("prefill", "decode"):
                prof = random_profile(rng, least)
                how = {"link": link} if role == "prefill" else {}
                pools.append(pool(prof, region=names[region], role=role, **how))
                counts.append(int(rng.integers(1, 3)))
                instances += [
                    Instance(prof, region, role=role, shared=shared, **how)
                    for _ in range(counts[-1])
                ]
        jobs = jobs_of(arrivals, isl, osl, home=home)
        threshold = float(rng.choice([0.05, 0.7]))
        serve(instances, jobs, wire, threshold)
        served = fleet(
            *pools, regions=names, latency=wire, routing=Routing(region_threshold=threshold)
        )
        requests = trace(arrivals, isl, osl, region=home, regions=names)
        assert_same(simulate(requests, served, Static(counts), duration_s=2048.0), jobs, instances)
        away += sum(job.region != job.home for job in jobs)
    assert away > 0


@pytest.mark.parametrize("block", range(10))
def test_several_regions_and_instances(block):
    """Routing sees the progress inside runs of equal iterations, and the wire takes its time."""
    away = 0
    for seed in range(block * 30, block * 30 + 30):
        rng = np.random.default_rng(10_000 + seed)
        arrivals, isl, osl = random_requests(rng, 60)
        arrivals = arrivals + 1 / 256  # after the policy has said what goes where
        regions = int(rng.integers(1, 4))
        home = rng.integers(0, regions, len(arrivals))
        counts = rng.integers(1, 4, regions)
        profiles = [random_profile(rng, int((isl + osl).max())) for _ in range(regions)]
        wire = rng.integers(1, 64, (regions, regions)) / 256
        wire[np.diag_indices(regions)] = 0.0
        wire = with_closed(np.random.default_rng(seed), wire)
        threshold = float(rng.choice([0.05, 0.3, 0.7]))
        sees = str(rng.choice(["queues", "memory"]))
        shares = np.floor(rng.uniform(0, 4, (regions, regions))) / 4 if seed % 3 == 0 else None
        instances = [
            Instance(profiles[r], r) for r in range(regions) for _ in range(int(counts[r]))
        ]
        jobs = jobs_of(arrivals, isl, osl, home=home)
        planned = shares if sees == "queues" and shares is not None else np.zeros(wire.shape)
        planned = planned / np.where(planned.any(axis=1), planned.sum(axis=1), 1)[:, None]
        serve(instances, jobs, wire, threshold, sees=sees, shares=planned.tolist())
        names = tuple("abc"[:regions])
        result = simulate(
            trace(arrivals, isl, osl, region=home, regions=names),
            fleet(
                *(pool(profiles[r], region=names[r], startup_s=1.0) for r in range(regions)),
                regions=names,
                latency=wire,
                routing=Routing(region_threshold=threshold, sees=sees),
            ),
            Shared(counts, planned),
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


def random_prompts(rng, isl, block):
    """Ids of prompts that begin alike: conversations that go on, and a few beginnings of many."""
    known, lists, fresh = [()], [], 0
    for tokens in isl:
        need = -(-int(tokens) // block)
        before = known[int(rng.integers(len(known)))][: int(rng.integers(0, need + 1))]
        ids = (*before, *range(fresh, fresh + need - len(before)))
        fresh += need
        known.append(ids)
        lists.append(ids)
    return lists


@pytest.mark.parametrize("apart", [False, True])
def test_prefix_caches(apart):
    """Every hit, every eviction and what follows from them, with and without prefill pools, under
    either router; memory counts what is shared once."""
    hits = evictions = preemptions = 0
    for seed in range(120):
        rng = np.random.default_rng(60_000 + seed)
        arrivals, isl, osl = random_requests(rng, 60)
        arrivals = np.floor(arrivals * 256) / 256
        block = int(rng.choice([1, 4, 16, 50]))
        lists = random_prompts(rng, isl, block)
        prof = random_profile(rng, int((isl + osl).max()))
        count = int(rng.integers(1, 4))
        router = str(rng.choice(["least-remaining", "prefix-aware"]))
        batching = str(rng.choice(["chunked", "whole", "alone"]))
        jobs = jobs_of(arrivals, isl, osl, blocks=lists)
        served = [pool(prof, batching=batching, prefix_cache=True)]
        role = {}
        if apart:
            role = {"role": "prefill", "link": KvLink(1.0, float(2.0 ** rng.integers(6, 14)))}
            served = [pool(prof, batching=batching, prefix_cache=True, **role)]
            served += [pool(prof, role="decode")]
        shared = {"free": 0.0}
        instances = [
            Instance(prof, block=block, batching=batching, shared=shared, **role)
            for _ in range(count)
        ]
        instances += [Instance(prof, role="decode")] * apart
        serve(instances, jobs, router=router)
        result = simulate(
            trace(arrivals, isl, osl, blocks=(lists, block)),
            fleet(*served, routing=Routing(instance=router)),
            Static([count, 1][: len(served)]),
            duration_s=2048.0,
        )
        assert_same(result, jobs, instances)
        hits += sum(i.hit for i in instances)
        evictions += sum(i.evicted for i in instances)
        preemptions += sum(i.preemptions for i in instances)
    assert min(hits, evictions, preemptions) > 0


@pytest.mark.parametrize("scheduler", ["fcfs", "edf", "pf", "dpa"])
def test_schedulers(scheduler):
    preemptions = lost = 0
    for seed in range(80):
        rng = np.random.default_rng(70_000 + seed)
        arrivals, isl, osl = random_requests(rng, 60)
        prof = random_profile(rng, int((isl + osl).max()))
        limits = np.sort(rng.choice([0.25, 0.5, 1.0, 4.0, 16.0, np.inf], 3, replace=False))
        tier = rng.integers(0, 3, len(arrivals))
        taus = {"tau_n": float(rng.choice([0.0, 0.5, 4.0])), "tau_p": float(rng.choice([0.25, 2]))}
        full = str(rng.choice(["preempt", "preempt", "fail"]))
        how = {"scheduler": scheduler, "when_full": full}
        instances = [Instance(prof, limits=tuple(limits), **taus, **how)]
        jobs = jobs_of(arrivals, isl, osl, tier=tier)
        serve(instances, jobs)
        # Listed in another order than that of their limits.
        tiers = [
            Tier(n, ttft_s=None if np.isinf(x) else x) for n, x in zip("abc", limits, strict=True)
        ][::-1]
        served = fleet(pool(prof, tau_n_s=taus["tau_n"], tau_p_s=taus["tau_p"], **how), tiers=tiers)
        requests = trace(arrivals, isl, osl, tier=tier, tiers=("a", "b", "c"))
        result = simulate(requests, served, Static([1]), duration_s=2048.0)
        assert_same(result, jobs, instances)
        preemptions += instances[0].preemptions
        lost += sum(job.lost for job in jobs)
    assert min(preemptions, lost) > 0


@pytest.mark.parametrize(("longest", "seeds"), [(90, 8), (400, 2)])
def test_the_router_finds_the_same_instance_among_many(longest, seeds):
    """Also where answers are long, so that what instances have left crosses within their runs."""
    for seed in range(seeds):
        rng = np.random.default_rng(50_000 + seed)
        arrivals = np.sort(np.floor(rng.uniform(0, 8.0, 300) * 256) / 256)
        isl, osl = rng.integers(1, 60, 300), rng.integers(1, longest, 300)
        prof = random_profile(rng, longest + 60)
        instances = [Instance(prof) for _ in range(int(rng.integers(5, 64)))]
        jobs = jobs_of(arrivals, isl, osl)
        serve(instances, jobs)
        result = simulate(
            trace(arrivals, isl, osl),
            fleet(pool(prof)),
            Static([len(instances)]),
            duration_s=2048.0,
        )
        assert_same(result, jobs, instances)


def random_part(rng, x_most, y_most, scale):
    """Seconds that mostly, not always, rise; sometimes measured in a part of the grid only."""
    x = np.unique(rng.integers(1, x_most, rng.integers(1, 6))).astype(float)
    y = np.unique(rng.integers(1, y_most, rng.integers(1, 9))) + rng.choice([0.0, 0.25])
    seconds = np.cumsum(np.cumsum(rng.uniform(-0.1, 1.0, (x.size, y.size)), axis=0), axis=1)
    seconds = scale * np.maximum(seconds, 0.01)
    if rng.random() < 0.5 and y.size > 1:
        low = rng.uniform(y[0], y[-1], x.size)
        return Part(x, y, seconds, low, rng.uniform(low, y[-1]))
    return Part(x, y, seconds)


@pytest.mark.parametrize("block", range(3))
def test_any_curve(block):
    """Decodes whose context grows are advanced together, and give what single steps give."""
    outside = inside = preemptions = 0
    for seed in range(block * 40, block * 40 + 40):
        rng = np.random.default_rng(20_000 + seed)
        arrivals, isl, osl = random_requests(rng, 40)
        arrivals = arrivals + rng.uniform(0, 1e-3)  # no ties: they would hang on the rounding
        timing = GridTiming(
            dense=random_part(rng, 80, 2, 0.01) if rng.random() < 0.5 else NOTHING,
            decode=random_part(rng, 14, 200, 0.01),
            prefill=random_part(rng, 80, 100, 0.02),
            beside=random_part(rng, 14, 200, 0.02) if rng.random() < 0.5 else None,
            mixed=float(rng.choice([0.0, 1.1])),
        )
        curve = grid(**vars(timing))
        prof = adjust_profile(random_profile(rng, int((isl + osl).max())), curve=curve)
        instances = [Instance(prof, timing=timing)]
        jobs = jobs_of(arrivals, isl, osl)
        serve(instances, jobs)
        result = simulate(
            trace(arrivals, isl, osl), fleet(pool(prof)), Static([1]), duration_s=4096.0
        )
        log, totals, series = result.requests, result.totals, result.series
        instance = instances[0]
        np.testing.assert_allclose(log.first_token_s, [job.first for job in jobs], rtol=1e-9)
        np.testing.assert_allclose(log.last_token_s, [job.last for job in jobs], rtol=1e-9)
        assert (totals.iterations[0], totals.preemptions[0]) == (
            instance.iterations,
            instance.preemptions,
        )
        assert totals.outside[0] == instance.outside
        assert totals.decode_s[0] == pytest.approx(instance.decode_s, abs=1e-9)
        held = series.utilisation.sum() * series.interval_s * prof.kv_capacity_tokens
        assert held == pytest.approx(instance.held, rel=1e-9)
        by_interval = np.zeros(series.output_tokens.shape[1])
        for end, tokens in instance.tokens:
            by_interval[int(end // series.interval_s)] += tokens
        np.testing.assert_array_equal(series.output_tokens[0], by_interval)
        outside += instance.outside
        inside += instance.iterations - instance.outside
        preemptions += instance.preemptions
    assert min(outside, inside, preemptions) > 0


@pytest.mark.parametrize("block", range(4))
def test_lost_and_slow_instances(block):
    """Requests of lost instances begin again with what they had; slow ones take their time."""
    retried = 0
    for seed in range(block * 50, block * 50 + 50):
        rng = np.random.default_rng(40_000 + seed)
        arrivals, isl, osl = random_requests(rng, 40)
        prof = random_profile(rng, int((isl + osl).max()))
        count = int(rng.integers(2, 6))
        times = np.sort(np.floor(rng.uniform(0, arrivals[-1] + 2.0, count + 1) * 512) / 512)
        events, alive = [], count
        for time in times:
            n = int(rng.integers(alive))
            if alive > 1 and rng.random() < 0.7:
                events.append((time, n, 0))
                alive -= 1
            else:
                events.append((time, n, float(rng.choice([0.5, 2.0, 4.0]))))
        faults = tuple(
            SlowInstance(0, time, 1e9, factor, n) if factor else Crash(0, time, n)
            for time, n, factor in events
        )
        instances = [Instance(prof) for _ in range(count)]
        jobs = jobs_of(arrivals, isl, osl)
        # At one instant the engine mends, then loses, then slows: have them in that order.
        events.sort(key=lambda event: (event[0], event[2] > 0))
        if len(set(times.tolist())) < len(times):
            continue  # which instance is the n-th would depend on it
        serve(instances, jobs, faults=events)
        result = simulate(
            trace(arrivals, isl, osl),
            fleet(pool(prof), faults=faults, retries=20),
            Static([count], interval_s=1e6),
            duration_s=2048.0,
        )
        np.testing.assert_array_equal(result.requests.first_token_s, [job.first for job in jobs])
        np.testing.assert_array_equal(result.requests.last_token_s, [job.last for job in jobs])
        assert result.series.output_tokens.sum() == osl.sum()
        retried += int(result.totals.retried[0])
    assert retried > 50


@pytest.mark.parametrize("block", range(3))
def test_silos_mixed_pools_and_regions(block):
    for seed in range(block * 30, block * 30 + 30):
        rng = np.random.default_rng(50_000 + seed)
        arrivals, isl, osl = random_requests(rng, 60)
        tier, home = rng.integers(3, size=(2, len(isl)))
        wire = rng.integers(0, 16, (3, 3)) / 256
        wire[np.diag_indices(3)] = 0.0
        wire = with_closed(np.random.default_rng(seed), wire)
        names = ("x", "y", "z")
        kinds = [None, (0,), (1, 2), (0, 1)][: int(rng.integers(1, 5))]
        pools, instances, counts = [], [], []
        for region in range(3):
            for tiers in kinds:
                prof = random_profile(rng, int((isl + osl).max()))
                named = None if tiers is None else tuple(names[t] for t in tiers)
                pools.append(pool(prof, region="abc"[region], tiers=named))
                counts.append(int(rng.integers(1, 3)))
                instances += [
                    Instance(prof, region, tiers=tiers, pool=len(pools)) for _ in range(counts[-1])
                ]
        jobs = jobs_of(arrivals, isl, osl, home=home, tier=tier)
        how = {
            "sees": str(rng.choice(["queues", "memory"])),
            "endpoint": str(rng.choice(["together", "least-memory"])),
        }
        serve(instances, jobs, wire.tolist(), **how)
        requests = trace(
            arrivals, isl, osl, tier=tier, region=home, tiers=names, regions=("a", "b", "c")
        )
        shaped = fleet(
            *pools, tiers=[Tier(n) for n in names], regions=("a", "b", "c"), latency=wire,
            routing=Routing(**how),
        )  # fmt: skip
        result = simulate(requests, shaped, Static(counts), duration_s=2048.0)
        assert_same(result, jobs, instances)
