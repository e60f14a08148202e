"""A stream read in pieces is the same simulation as all of it at once."""

from dataclasses import astuple, fields, replace

import numpy as np
import pytest

from simulation.engine import stream_run
from simulation.engine.allocation import allocate
from simulation.engine.run import simulate
from simulation.engine.stream_run import simulate_stream
from simulation.errors import SimulationError
from simulation.fleet import Routing, Tier
from simulation.metrics import summarise
from simulation.policies.static import Static
from simulation.results import INSTANCE_FAILED, NO_POOL
from simulation.stream.result import summarise_stream
from simulation.stream.stream import Stream
from simulation.stream.tally import ERROR
from tests.simulation.builders import fleet, pool, profile, trace
from tests.simulation.test_fleet_laws import DURATION_S, Restless, random_fleet, random_requests

FINEST_MS = 0.13  # below it a bucket tells no more


def same(result, streamed):
    """Pools are the same to the bit, requests in every count, latencies as far as is told."""
    for name in ("series", "totals", "after"):
        a, b = getattr(result, name), getattr(streamed, name)
        for field in fields(a):
            figure, other = (np.asarray(getattr(x, field.name)) for x in (a, b))
            assert figure.tobytes() == other.tobytes(), (name, field.name)
    a, b = summarise(result), summarise_stream(streamed)
    groups = [(a, b), *((a.tiers[name], b.tiers[name]) for name in a.tiers)]
    for model, regions in a.models.items():
        groups += [(regions[name], b.models[model][name]) for name in regions]
    for figure, other in groups:
        for name in ("ttft_ms", "tbt_ms", "e2e_ms"):
            exact, streamed_values = astuple(getattr(figure, name)), astuple(getattr(other, name))
            assert [value is None for value in exact] == [
                value is None for value in streamed_values
            ]
            if exact[0] is not None:
                assert streamed_values[0] == pytest.approx(exact[0], abs=1e-3)
                assert streamed_values[1:] == pytest.approx(
                    exact[1:], rel=ERROR + 1e-9, abs=FINEST_MS
                )
    streamed_values = {"wall_seconds": 0.0, "tiers": {}, "models": {}}
    streamed_values |= dict.fromkeys(("ttft_ms", "tbt_ms", "e2e_ms"), a.ttft_ms)
    assert replace(a, **streamed_values) == replace(b, **streamed_values)
    rest = dict(list(streamed_values.items())[3:])
    for figure, other in groups[1:]:
        assert replace(figure, **rest) == replace(other, **rest)


def test_whatever_happens_it_happens_to_a_stream_too():
    """Fleets at random: models nobody serves, prefill and decode pools, requests that wait, are
    preempted, begin again after faults, are given up, or are left at the end."""
    reasons = set()
    for seed in range(12):
        rng = np.random.default_rng(70_000 + seed)
        requests = random_requests(rng, int(rng.integers(1, 400)))
        serving = random_fleet(rng)
        how = {"seed": seed, "duration_s": DURATION_S}
        result = simulate(requests, serving, Restless(seed), **how)
        stream, piece = Stream.of(requests, 50), (1, 7, 40)[seed % 3]
        same(result, simulate_stream(stream, serving, Restless(seed), piece=piece, **how))
        reasons |= set(result.reject_reasons)
    assert reasons == {INSTANCE_FAILED, NO_POOL}


def test_prompts_share_blocks_with_those_of_earlier_pieces():
    rng = np.random.default_rng(1)
    n = 300
    isl = rng.integers(16, 120, n)
    lists = [
        [int(i) * 100 + j for j in range(-(-k // 16))]
        for i, k in zip(rng.zipf(1.5, n) % 9, isl, strict=True)
    ]
    requests = trace(np.arange(n) / 8.0, isl, rng.integers(1, 30, n), blocks=(lists, 16))
    serving = fleet(
        pool(profile(kv=300), prefix_cache=True, scheduler="dpa"),
        tiers=[Tier("t", ttft_s=2.0)],
        routing=Routing(instance="prefix-aware"),
    )
    result = simulate(requests, serving, Static([3]), duration_s=64.0)
    assert result.totals.hit_tokens[0] > 0 < result.totals.evicted_tokens[0]
    same(
        result,
        simulate_stream(Stream.of(requests), serving, Static([3]), duration_s=64.0, piece=11),
    )


def test_what_is_done_is_not_kept(monkeypatch):
    requests = trace(np.arange(4000) / 8.0, 8, 2)
    states, held = [], []

    def kept(*args):
        states.append(allocate(*args))
        return states[0]

    monkeypatch.setattr(stream_run, "allocate", kept)
    result = stream_run.simulate_stream(
        Stream.of(requests),
        fleet(),
        Static([2]),
        duration_s=512.0,
        piece=100,
        progress=lambda _: held.append(len(states[0].requests)),
    )
    assert result.tally.outcomes.sum() == 4000
    assert max(held) < 300


def test_parts_tallied_apart_add_up_to_the_whole():
    requests = random_requests(np.random.default_rng(5), 500)
    serving = random_fleet(np.random.default_rng(5))
    piece = {"duration_s": DURATION_S, "seed": 5}
    first, two = (
        simulate_stream(Stream.of(requests), serving, Restless(5), piece=size, **piece).tally
        for size in (500, 3)
    )
    assert [a.tobytes() for a in first] == [b.tobytes() for b in two]
    both = first.plus(two)
    assert (both.buckets == 2 * first.buckets).all() and both.last_s == first.last_s


def test_a_stream_that_is_none_is_refused_in_a_sentence():
    requests = trace([0.0, 1.0, 2.0], 8, 2)
    stream = Stream.of(requests)
    back = replace(stream, chunks=lambda: iter([requests, requests]))
    other = replace(stream, chunks=lambda: iter([replace(requests, models=("other",))]))
    for broken, sentence in ((back, "must not decrease"), (other, "the stream's names")):
        with pytest.raises(SimulationError, match=sentence):
            simulate_stream(broken, fleet(), Static([1]), duration_s=60.0, piece=1)
