"""A long trace is replayed as a stream, and its figures are those of a short one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simulation import replayed
from simulation.cells import simulate_cell
from simulation.policies.flat import Flat
from simulation.policy import Actions, ScalingPolicy
from simulation.replayed import figures, is_long, meets_all, shares_met
from simulation.results import SimulationResult
from simulation.stream.result import StreamResult
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.stream.test_streaming import same
from tests.simulation.test_fleet_laws import (
    DURATION_S,
    Restless,
    random_fleet,
    random_requests,
)


def both_ways(monkeypatch, requests, serving, policy, **how):
    whole = simulate_cell(requests, serving, policy(), cells=1, **how)
    monkeypatch.setattr(replayed, "LONG", len(requests) - 1)
    monkeypatch.setattr(replayed, "PIECE", 37)
    streamed = simulate_cell(requests, serving, policy(), cells=1, **how)
    assert isinstance(whole, SimulationResult) and isinstance(streamed, StreamResult)
    return whole, streamed


@pytest.mark.parametrize("seed", range(3))
def test_beyond_a_number_of_requests_it_is_a_stream_and_the_same(monkeypatch, seed):
    rng = np.random.default_rng(80_000 + seed)
    requests, serving = random_requests(rng, 300), random_fleet(rng)
    how = {"seed": seed, "duration_s": DURATION_S}
    whole, streamed = both_ways(monkeypatch, requests, serving, lambda: Restless(seed), **how)
    same(whole, streamed)
    assert shares_met(whole) == shares_met(streamed) and meets_all(whole) == meets_all(streamed)
    kept = simulate_cell(requests, serving, Restless(seed), cells=1, keep=True, **how)
    assert isinstance(kept, SimulationResult) and is_long(len(requests))
    assert replace(figures(kept), wall_seconds=0.0) == replace(figures(whole), wall_seconds=0.0)


class HalfOfTheMemory(ScalingPolicy):
    """Lets instances use half of their KV memory, or as much as the largest request needs."""

    name = "half"
    interval_s = 10.0

    def reset(self, fleet):
        return np.array([pool.initial for pool in fleet.pools])

    def decide(self, observation):
        return Actions(observation.ready + observation.starting, kv_share=np.array([0.5]))


def test_a_request_that_nothing_can_hold_counts_for_no_limit(monkeypatch):
    """Its size would keep the policy from setting memory aside, were it not left out."""
    rng = np.random.default_rng(4)
    isl = rng.integers(8, 60, 400)
    isl[7] = 5_000
    requests = trace(np.sort(rng.uniform(0, 60, 400)), isl, rng.integers(1, 30, 400))
    serving = fleet(pool(profile(kv=300)))
    whole, streamed = both_ways(monkeypatch, requests, serving, HalfOfTheMemory)
    assert sum(whole.reject_reasons.values()) == 1
    same(whole, streamed)
    assert simulate_cell(requests, serving, Flat([1]), cells=1).totals.iterations[0] > 0
