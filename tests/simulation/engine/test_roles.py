"""Replicas that change roles, and decode replicas that take prompts over."""

import math

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.faults import Crash
from simulation.fleet import KvLink
from simulation.policies.static import Static
from simulation.policy import Actions
from tests.simulation.builders import fleet, linear_seconds, pool, profile, trace
from tests.simulation.engine.reference import Instance, serve
from tests.simulation.engine.test_reference import (
    assert_same,
    jobs_of,
    random_profile,
    random_requests,
)

LINK = KvLink(kv_bytes_per_token=1.0, bytes_s=64.0)
COLUMNS = ("outcome", "pool", "first_token_s", "last_token_s", "ttft_s", "tbt_s", "e2e_s")


class Scripted(Static):
    """A static fleet whose replicas move by a script: the i-th entry at decision i."""

    def __init__(self, counts, moves, *, every, switch_s=0.0, chunk=None, overflow_s=math.inf):
        super().__init__(counts, interval_s=every)
        self.moves, self.switch_s = moves, switch_s
        self.chunk, self.overflow_s = chunk, overflow_s

    def reset(self, fleet):
        self.calls, self.seen = 0, []
        return super().reset(fleet)

    def decide(self, observation):
        self.seen.append(observation)
        moved = self.moves[self.calls] if self.calls < len(self.moves) else None
        self.calls += 1
        if moved is None:
            self.interval_s = 1e9  # the script is over: nothing changes any more
        return Actions(
            observation.ready + observation.starting,
            moves=None if moved is None else np.array(moved),
            switch_s=self.switch_s,
            prompt_chunk=None if self.chunk is None else np.array([0, self.chunk]),
            overflow_s=self.overflow_s,
        )


def apart(prof, other=None, link=LINK, **how):
    return fleet(
        pool(prof, role="prefill", link=link, minimum=1, **how),
        pool(other or prof, role="decode", minimum=1, **how),
    )


@pytest.mark.parametrize("takes_prompts", [False, True])
def test_a_plain_simulator_gives_the_same(takes_prompts):
    switched = diverted = preempted = 0
    for seed in range(40):
        rng = np.random.default_rng(90_000 + seed)
        arrivals, isl, osl = random_requests(rng, 80)
        arrivals = np.floor(arrivals * 256) / 256 + 0.25
        least = int((isl + osl).max())
        profiles = [random_profile(rng, least) for _ in range(2)]
        counts = rng.integers(1, 4, 2)
        link = KvLink(1.0, float(2.0 ** rng.integers(6, 14)), float(2.0 ** rng.integers(6, 16)))
        every, switch_s = 0.25, float(rng.choice([0.0, 0.25, 1.5]))
        script = rng.integers(-6, 3, (60, 2)).clip(0) * (not takes_prompts or seed % 2)
        chunk = int(rng.integers(1, 50)) if takes_prompts else 0
        overflow_s = float(rng.choice([0.0, 0.5, 2.0])) if takes_prompts else math.inf
        shared = {"free": 0.0}
        kinds = [
            {"profile": profiles[0], "role": "prefill", "link": link, "shared": shared},
            {"profile": profiles[1], "role": "decode", "chunk": chunk},
        ]
        instances = [
            Instance(**kinds[p], pool=p, slot=slot) for p in range(2) for slot in range(counts[p])
        ]
        jobs = jobs_of(arrivals, isl, osl)
        serve(
            instances,
            jobs,
            moves=[(every * i, p, 1 - p, int(row[p]))
                   for i, row in enumerate(script, 1) for p in range(2)],
            switch_s=switch_s,
            overflow_s=overflow_s,
            made=[lambda kind=kind: Instance(**kind) for kind in kinds],
        )  # fmt: skip
        policy = Scripted(
            counts,
            [[[0, a], [b, 0]] for a, b in script],
            every=every,
            switch_s=switch_s,
            chunk=chunk or None,
            overflow_s=overflow_s,
        )
        served = apart(*profiles, link)
        result = simulate(trace(arrivals, isl, osl), served, policy, duration_s=2048.0)
        assert_same(result, jobs, instances)
        assert result.totals.switches.sum() == len(instances) - counts.sum()
        switched += int(result.totals.switches.sum())
        diverted += int(result.totals.diverted.sum())
        preempted += sum(i.preemptions for i in instances)
    assert switched > 100
    assert preempted > 0
    assert (diverted > 40) == takes_prompts


@pytest.mark.parametrize("switch_s", [0.0, 1.5])
def test_an_idle_replica_serves_its_new_role_after_the_switch(switch_s):
    prof = profile()
    policy = Scripted([2, 1], [[[0, 1], [0, 0]]], every=1.0, switch_s=switch_s)
    result = simulate(trace([9.0], 8, 2), apart(prof), policy, duration_s=10.0, interval_s=1.0)
    assert result.totals.switches.tolist() == [0, 1]
    assert result.totals.starts.sum() == 0
    np.testing.assert_allclose(result.totals.starting_s, [0.0, switch_s])
    np.testing.assert_array_equal(result.series.ready[0], [2, *[1] * 9])
    ready = np.clip(np.arange(1, 11) - 1.0 - switch_s, 0, 1)
    np.testing.assert_allclose(result.series.ready[1], 1 + ready)


def test_a_busy_replica_ends_its_work_first_and_its_hours_have_no_gap():
    prof = profile(alpha=0.25, beta=0.0, gamma=0.0, delta=0.0)
    policy = Scripted([1, 2], [[[0, 0], [1, 0]]], every=1.0, switch_s=0.5)
    served = apart(prof, link=KvLink(1.0, 1e9))
    # Both decode replicas have a request; that with fewer tokens left switches.
    result = simulate(trace([0.0, 0.0], 8, [21, 9]), served, policy, duration_s=8.0, interval_s=1.0)
    fixed = simulate(trace([0.0, 0.0], 8, [21, 9]), served, Static([1, 2]), duration_s=8.0)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(result.requests, name), getattr(fixed.requests, name))
    end = float(np.sort(result.requests.last_token_s)[0])
    assert result.totals.switches.tolist() == [1, 0]
    np.testing.assert_allclose(result.series.draining[1].sum(), end - 1.0, atol=1e-6)
    alive = result.series.ready + result.series.starting + result.series.draining
    np.testing.assert_allclose(alive.sum(axis=0), 3.0)
    assert policy.seen[1].starting.tolist() == [1, 0]
    assert policy.seen[1].draining.tolist() == [0, 0]


def test_without_a_switch_and_a_prompt_taken_over_every_digit_is_the_same():
    rng = np.random.default_rng(5)
    arrivals, isl, osl = np.sort(rng.uniform(0, 60, 300)), rng.integers(1, 90, 300), 20
    served = apart(profile(kv=600), initial=2)
    requests = trace(arrivals, isl, osl)
    none = Scripted([2, 2], [[[0, 0], [0, 0]]] * 90, every=1.0, chunk=0, overflow_s=0.0)
    never = Scripted([2, 2], [], every=1.0, chunk=16, overflow_s=1e9)
    results = [
        simulate(requests, served, policy, duration_s=90.0)
        for policy in (Static([2, 2], interval_s=1.0), none)
    ]
    for name in COLUMNS:
        assert len({getattr(result.requests, name).tobytes() for result in results}) == 1
    assert simulate(requests, served, never, duration_s=90.0).totals.diverted.sum() == 0


@pytest.mark.parametrize("seed", range(20))
def test_gpu_hours_do_not_depend_on_switches(seed):
    """With as many replicas as before, whatever moves; and each request has one outcome."""
    rng = np.random.default_rng(seed)
    n = 200
    requests = trace(np.sort(rng.uniform(0, 60, n)), rng.integers(1, 90, n), rng.integers(1, 60, n))
    served = apart(profile(kv=600), initial=3, startup_s=30.0)
    script = [[[0, a], [b, 0]] for a, b in rng.integers(-4, 3, (60, 2)).clip(0)]
    policy = Scripted([3, 3], script, every=1.0, switch_s=float(rng.choice([0.0, 2.0])),
                      chunk=int(rng.integers(0, 20)), overflow_s=0.25)  # fmt: skip
    result = simulate(requests, served, policy, duration_s=60.0)
    totals = result.totals
    spent = totals.starting_s + totals.idle_s + totals.prefill_s + totals.decode_s
    assert spent.sum() == pytest.approx(6 * 60.0)
    assert np.bincount(result.requests.outcome, minlength=4).sum() == n
    assert (totals.starting_s.sum() > 0) == (policy.switch_s > 0 and totals.switches.sum() > 0)


def test_a_replica_that_is_lost_on_its_way_is_lost():
    prof = profile(alpha=0.25)
    policy = Scripted([1, 2], [[[0, 0], [1, 0]]], every=1.0, switch_s=0.5)
    served = fleet(*apart(prof).pools, faults=(Crash(1, 2.0, 0), Crash(1, 2.25, 0)))
    result = simulate(trace([0.0, 0.0], 8, 60), served, policy, duration_s=60.0)
    assert result.totals.switches.sum() == 0
    assert result.totals.failures.tolist() == [0, 2]


def test_tbt_stays_within_the_chunk():
    """A decode replica computes prompts beside its decodes, a chunk in each iteration."""
    prof = profile(alpha=0.25, beta=0.0, gamma=0.0, delta=1 / 128, budget=64, kv=4096)
    served = apart(prof, link=KvLink(1.0, 1e9))
    requests = trace([0.0, 2.0, 2.0, 2.0], [8, 256, 256, 256], [40, 2, 2, 2])
    results = {
        chunk: simulate(
            requests, served,
            Scripted([1, 1], [], every=1.0, chunk=chunk, overflow_s=0.5), duration_s=60.0,
        )
        for chunk in (0, 16, 64)
    }  # fmt: skip
    assert [int(results[chunk].totals.diverted.sum()) for chunk in (0, 16, 64)] == [0, 1, 1]
    for chunk in (16, 64):
        gap = results[chunk].requests.tbt_s[0]
        assert results[0].requests.tbt_s[0] < gap <= linear_seconds(prof, 1, chunk)
    waits = [results[chunk].requests.ttft_s.max() for chunk in (0, 64)]
    assert waits[1] < waits[0]


def test_impossible_moves_are_refused():
    served = apart(profile())
    for moves in ([[1, 0], [0, 0]], [[0, -1], [0, 0]], [[0, 1]]):
        with pytest.raises(SimulationError, match="moves"):
            simulate(trace([0.0], 8, 4), served, Scripted([1, 1], [moves], every=1.0))
    other = fleet(*served.pools[:1], pool(profile(tp=2), role="decode"))
    with pytest.raises(SimulationError, match="moves"):
        simulate(trace([0.0], 8, 4), other, Scripted([1, 1], [[[0, 1], [0, 0]]], every=1.0))
    whole = fleet(served.pools[0], pool(profile(), role="decode", batching="whole"))
    with pytest.raises(SimulationError, match="prompt_chunk"):
        simulate(trace([0.0], 8, 4), whole, Scripted([1, 1], [], every=1.0, chunk=8))
