"""Fleets whose models know nothing of each other, simulated apart and put together again."""

from dataclasses import fields, replace

import numpy as np
import pytest

from simulation.engine.stream_run import simulate_stream
from simulation.errors import SimulationError
from simulation.faults import Crash
from simulation.fleet import Tier
from simulation.policies.reactive import UnifiedReactive
from simulation.start_times import StartUp
from simulation.stream.parts import merge_parts, parts_of
from simulation.stream.result import summarise_stream
from simulation.stream.stream import Stream
from tests.simulation.builders import fleet, pool, profile, trace

MODELS = ("m", "n", "o")
POOLS = [
    pool(profile(kv=400), model=model, region=region, initial=initial)
    for region in "ab"
    for model, initial in zip(MODELS, (1, 3, 2), strict=True)
]
WHERE = {"regions": ("a", "b"), "latency": [[0, 0.125], [0.25, 0]]}
FLEET = fleet(*POOLS, tiers=[Tier("t", ttft_s=2.0), Tier("late", deferrable=True)], **WHERE)


def some_requests(n=900):
    rng = np.random.default_rng(3)
    return trace(
        np.sort(rng.uniform(0, 300, n)), rng.integers(1, 120, n), rng.integers(1, 60, n),
        model=rng.integers(3, size=n), region=rng.integers(2, size=n), tier=rng.integers(2, size=n),
        models=MODELS, regions=("a", "b"), tiers=("t", "late"),
    )  # fmt: skip


def without_the_first_model(serving):
    """Return the fleet without pools of model m, with two requests of which one is of it."""
    none = [
        replace(pool, initial=0, maximum=0) if pool.model == "m" else pool for pool in serving.pools
    ]
    requests = trace(
        [0.0, 1.0], 8, 8, model=[0, 1], tier=[0, 1],
        models=MODELS, regions=("a", "b"), tiers=("t", "late"),
    )  # fmt: skip
    tiers = (Tier("t", ttft_s=2.0), Tier("late", e2e_s=9e4))
    return replace(serving, pools=tuple(none), tiers=tiers), requests


def replayed(requests, part, duration_s):
    codes = [requests.models.index(name) for name in part.fleet.models]
    its = Stream.of(requests.rows(np.isin(requests.model, codes)))
    its = replace(its, most_tokens=Stream.of(requests).most_tokens)
    return simulate_stream(its, part.fleet, UnifiedReactive(), duration_s=duration_s, piece=40)


@pytest.mark.parametrize("most", [2, 3, 9])
def test_parts_make_the_whole_to_the_byte(most):
    requests, parts = some_requests(), parts_of(FLEET, most)
    assert sorted(p for part in parts for p in part.pool_indices) == list(range(6))
    assert len(parts) == min(most, 3)
    at_once = replayed(requests, parts_of(FLEET, 1)[0], 300.0)
    made = merge_parts(FLEET, parts, [replayed(requests, part, 300.0) for part in parts])
    assert [a.tobytes() for a in at_once.tally] == [b.tobytes() for b in made.tally]
    for name in ("series", "totals", "after"):
        expected, other = getattr(at_once, name), getattr(made, name)
        for field in fields(expected):
            a, b = (np.asarray(getattr(x, field.name)) for x in (expected, other))
            assert a.tobytes() == b.tobytes(), (name, field.name)
    a, b = (replace(summarise_stream(x), wall_seconds=0.0) for x in (at_once, made))
    assert a == b and a.completed == 900


def test_models_that_meet_stay_together():
    for meeting in (
        replace(FLEET, faults=(Crash(0, 5.0),)),
        replace(FLEET, pools=(replace(POOLS[0], start_up=StartUp(other_model_s=9.0)), *POOLS[1:])),
    ):
        assert [part.pool_indices for part in parts_of(meeting, 3)] == [tuple(range(6))]


def test_parts_that_others_would_have_waited_for_are_refused():
    """Model m is hopelessly behind, and a request of n is not due for a day."""
    serving, requests = without_the_first_model(FLEET)
    parts = parts_of(serving, 3)
    with pytest.raises(SimulationError, match="one part"):
        merge_parts(serving, parts, [replayed(requests, part, 60.0) for part in parts])
