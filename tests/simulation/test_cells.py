"""One of several equal cells of a fleet stands for all of them."""

import numpy as np
import pytest

from simulation import trace_replay
from simulation.cells import per_cell, simulate_cell
from simulation.engine.run import simulate
from simulation.metrics import summarise
from simulation.policies.static import Static
from simulation.policy import ScalingPolicy
from simulation.trace_replay import summarise_replay
from tests.simulation.builders import fleet, pool, trace

CELLS = 5
ARRIVALS = np.cumsum(np.random.default_rng(0).exponential(0.25, 2000))
REQUESTS = trace(ARRIVALS, 40, 8)


class Growing(ScalingPolicy):
    """Asks for one more instance of all each time, and keeps what it was shown."""

    name = "growing"
    interval_s = 60.0
    wants_signals = True

    def reset(self, fleet):
        self.seen = []
        self.maximum = fleet.pools[0].maximum
        return np.array([fleet.pools[0].initial])

    def decide(self, observation):
        self.seen.append(observation)
        return observation.ready + observation.starting + 1


def test_one_cell_is_the_fleet_itself():
    a = simulate_cell(REQUESTS, fleet(pool(initial=2)), Static([2]), cells=1)
    b = simulate(REQUESTS, fleet(pool(initial=2)), Static([2]))
    assert a.cells == 1 and summarise(a).gpu_hours == summarise(b).gpu_hours
    np.testing.assert_array_equal(a.requests.ttft_s, b.requests.ttft_s)


@pytest.mark.parametrize("most", [10_000, 1_000])
def test_counts_are_of_all_cells_and_latencies_of_one(most, monkeypatch):
    """Of a long trace too, which is replayed as a stream."""
    monkeypatch.setattr(trace_replay, "LONG", most)
    cell = summarise_replay(simulate_cell(REQUESTS, fleet(pool(initial=2)), Static([2]), cells=1))
    every = fleet(pool(initial=2 * CELLS, maximum=64 * CELLS))
    every_cell = summarise_replay(simulate_cell(REQUESTS, every, Static([2 * CELLS]), cells=CELLS))
    for name in ("arrived", "completed", "input_tokens", "output_tokens", "tokens_in_time",
                 "gpu_hours", "cost_usd", "energy_kwh", "carbon_kg", "iterations"):  # fmt: skip
        assert getattr(every_cell, name) == pytest.approx(CELLS * getattr(cell, name)), name
    assert every_cell.pools[0].peak_instances == CELLS * cell.pools[0].peak_instances
    assert every_cell.tiers["t"].arrived == CELLS * cell.tiers["t"].arrived
    for name in ("ttft_ms", "tbt_ms", "e2e_ms", "slo_attainment", "worst_hour", "missed_hours"):
        assert getattr(every_cell, name) == getattr(cell, name), name


def test_the_policy_sees_the_whole_fleet_and_never_has_fewer_than_it_asked_for():
    policy = Growing()
    every = fleet(pool(initial=11, maximum=28))
    result = simulate_cell(REQUESTS, every, policy, cells=CELLS)
    assert policy.maximum == 28  # it is told of the whole fleet
    assert policy.seen[0].ready.tolist() == [15]  # 11, in whole instances of each of five cells
    ups = [int((o.ready + o.starting)[0]) for o in policy.seen]
    assert ups[:3] == [15, 20, 25]  # 16 are four of each
    assert max(ups) == 25  # of the 28 there may be, what divides
    arrived = sum(float(o.input_tps[0]) * policy.interval_s for o in policy.seen)
    inside = policy.seen[-1].time_s > ARRIVALS
    assert arrived == pytest.approx(CELLS * 40 * inside.sum())
    assert result.fleet.pools[0].initial == 15
    assert result.series.ready[0, 0] == pytest.approx(15)


def test_a_part_of_a_cell_is_a_whole_instance():
    assert per_cell(np.array([0, 1, 10, 11]), 10).tolist() == [0, 1, 1, 2]
