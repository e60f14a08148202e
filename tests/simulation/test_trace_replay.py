"""A long trace is replayed as a stream, and its figures are those of a short one."""

from dataclasses import replace

import numpy as np
import pytest

from simulation import trace_replay
from simulation.cells import simulate_cell
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.policies.static import Static
from simulation.policy import Actions, ScalingPolicy
from simulation.results import SimulationResult
from simulation.stream.result import StreamResult
from simulation.trace_replay import due_and_late, is_long, summarise_replay
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.stream.test_parts import without_the_first_model
from tests.simulation.stream.test_streaming import same
from tests.simulation.test_fleet_laws import DURATION_S, Restless, random_fleet, random_requests


def both_ways(monkeypatch, requests, serving, policy, **how):
    at_once = simulate_cell(requests, serving, policy(), cells=1, **how)
    monkeypatch.setattr(trace_replay, "LONG", len(requests) - 1)
    monkeypatch.setattr(trace_replay, "PIECE", 37)
    monkeypatch.setattr(trace_replay, "REQUESTS_PER_DECISION", 1)
    streamed = simulate_cell(requests, serving, policy(), cells=1, **how)
    assert isinstance(at_once, SimulationResult) and isinstance(streamed, StreamResult)
    return at_once, streamed


@pytest.mark.parametrize("seed", range(3))
def test_beyond_a_number_of_requests_it_is_a_stream_and_the_same(monkeypatch, seed):
    rng = np.random.default_rng(80_000 + seed)
    requests, serving = random_requests(rng, 300), random_fleet(rng)
    how = {"seed": seed, "duration_s": DURATION_S}
    at_once, streamed = both_ways(monkeypatch, requests, serving, lambda: Restless(seed), **how)
    same(at_once, streamed)
    np.testing.assert_array_equal(due_and_late(at_once), due_and_late(streamed))
    kept = simulate_cell(requests, serving, Restless(seed), cells=1, keep=True, **how)
    assert isinstance(kept, SimulationResult) and is_long(len(requests))
    assert replace(summarise_replay(kept), wall_seconds=0.0) == replace(
        summarise_replay(at_once), wall_seconds=0.0
    )


@pytest.mark.parametrize("seed", range(6))
def test_a_brief_replay_counts_the_same(seed):
    """The requests in flight at the start are not counted either."""
    rng = np.random.default_rng(81_000 + seed)
    requests, serving = random_requests(rng, 300), random_fleet(rng)
    before = random_requests(rng, 40).rows(slice(0, 40))
    carried = replace(before, arrival_s=np.zeros(len(before)), start_s=requests.start_s)
    how = {"seed": seed, "duration_s": DURATION_S, "carried": carried if seed % 2 else None}
    whole = simulate_cell(requests, serving, Restless(seed), cells=1, **how)
    brief = simulate_cell(requests, serving, Restless(seed), cells=1, brief=True, **how)
    assert isinstance(whole, SimulationResult) and isinstance(brief, StreamResult)
    np.testing.assert_array_equal(due_and_late(whole), due_and_late(brief))
    same = {"wall_seconds": 0.0, "tiers": {}, "models": {}}
    left, right = (summarise_replay(x, brief=True) for x in (whole, brief))
    assert replace(left, **same) == replace(right, **same)


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
    at_once, streamed = both_ways(monkeypatch, requests, serving, HalfOfTheMemory)
    assert sum(at_once.reject_reasons.values()) == 1
    same(at_once, streamed)
    assert simulate_cell(requests, serving, Static([1]), cells=1).totals.iterations[0] > 0


MODELS = ("m", "n", "o")
APART = fleet(
    *(
        pool(profile(kv=400), model=model, region=region, initial=initial, maximum=6)
        for region in "ab"
        for model, initial in zip(MODELS, (1, 3, 2), strict=True)
    ),
    tiers=[Tier("t", ttft_s=2.0), Tier("late", e2e_s=9e4, deferrable=True)],
    regions=("a", "b"),
    latency=[[0, 0.125], [0.25, 0]],
)


class Together(ScalingPolicy):
    """Gives what the models have together to those that others' load, shares and signals say."""

    name = "together"
    interval_s = 7.0
    wants_signals = True

    def reset(self, fleet):
        self.looks = 0
        return np.array([pool.initial for pool in fleet.pools])

    def decide(self, observation):
        self.looks += 1
        tps = observation.signals.decode_tps
        targets = 1 + np.argsort(np.argsort(observation.load + observation.input_tps + tps))
        turn = np.arange(len(targets)) % 3 == self.looks % 3
        return Actions(
            np.roll(targets, self.looks), soft_s=3.0, firm=turn, max_batch=4 + targets,
            speed=1.0 + turn, shares=np.eye(2)[None, [1, 0]].repeat(3, axis=0) * (self.looks % 2),
        )  # fmt: skip


def apart_requests(n=900, model=3):
    rng = np.random.default_rng(3)
    return trace(
        np.sort(rng.uniform(0, 300, n)), rng.integers(1, 120, n), rng.integers(1, 60, n),
        model=rng.integers(model, size=n), region=rng.integers(2, size=n),
        tier=rng.integers(2, size=n), models=(*MODELS, "x"), regions=("a", "b"),
        tiers=("t", "late"),
    )  # fmt: skip


def test_models_apart_are_replayed_side_by_side_to_the_byte(monkeypatch):
    """Under a policy that looks at them together; one of the models nobody serves."""
    requests, looks = apart_requests(model=4), []
    monkeypatch.setattr(
        trace_replay, "simulate_in_parallel", counted(looks, trace_replay.simulate_in_parallel)
    )
    at_once, streamed = both_ways(monkeypatch, requests, APART, Together, duration_s=300.0)
    assert looks == [2]
    same(at_once, streamed)
    assert sum(at_once.reject_reasons.values()) == (requests.model == 3).sum()


def counted(looks, play):
    def counting(stream, fleet, parts, *rest, **how):
        looks.append(len(parts))
        return play(stream, fleet, parts, *rest, **how)

    return counting


def test_all_wait_for_the_last_request_of_any(monkeypatch):
    """Model m is hopelessly behind, and a request of n is not due for a day."""
    serving, requests = without_the_first_model(APART)
    first = [pool.initial for pool in serving.pools]
    at_once, streamed = both_ways(
        monkeypatch, requests, serving, lambda: Static(first), duration_s=60.0
    )
    same(at_once, streamed)
    assert at_once.after.until_s == streamed.after.until_s > 9e4


class Breaks(Together):
    def decide(self, observation):
        if self.looks == 5:
            raise SimulationError("It breaks.")
        return super().decide(observation)


def test_what_one_part_raises_ends_them_all(monkeypatch):
    monkeypatch.setattr(trace_replay, "LONG", 100)
    monkeypatch.setattr(trace_replay, "REQUESTS_PER_DECISION", 1)
    with pytest.raises(SimulationError, match=r"It breaks\."):
        simulate_cell(apart_requests(), APART, Breaks(), cells=1, duration_s=300.0)

    def cancel(fraction):
        if fraction > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate_cell(
            apart_requests(), APART, Together(), cells=1, duration_s=300.0, progress=cancel
        )
