"""A fleet with replicas that are lost all the time."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.fleet import Fleet
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.schedule_follower import ScheduleFollower
from simulation.policy import Hold, Observation
from tests.simulation.builders import fleet, pool, trace
from tests.simulation.scripted_policies import Asking

TIMES_S = [0.0, 300.0, 600.0]


def follower(*counts: int) -> ScheduleFollower:
    schedule = FixedSchedule(TIMES_S, np.array(counts)[:, None])
    return ScheduleFollower(schedule=schedule, name="plan")


class Keeping(Asking):
    """Start with ``first`` replicas, then ask for those seen, and for ``more``."""

    def __init__(self, first: int, more: int, *, holds: bool = False) -> None:
        super().__init__([first])
        self._more, self._holds = more, holds

    def decide(self, observation: Observation) -> Any:
        self.seen.append(int(observation.ready[0] + observation.starting[0]))
        return observation.ready + observation.starting + self._more

    def hold(self, time_s: float) -> Hold | None:
        targets = np.array([self.seen[-1]])
        return Hold(time_s + 240.0, targets) if self._holds else None


def without(its: Fleet, lost: int) -> Fleet:
    return replace(its, pools=tuple(replace(one, lost=lost) for one in its.pools))


@pytest.mark.parametrize("minimum", [0, 1])
def test_a_schedule_without_a_replica_is_the_schedule_of_one_replica_fewer(minimum: int) -> None:
    its = fleet(pool(minimum=minimum, maximum=8, startup_s=60.0))
    requests = trace(np.arange(900.0), 400, 40)
    fewer = simulate(requests, without(its, 1), follower(3, 5, 2))
    plain = simulate(requests, its, follower(2, 4, 1))
    assert np.array_equal(fewer.series.ready, plain.series.ready)
    assert np.array_equal(fewer.requests.e2e_s, plain.requests.e2e_s)


@pytest.mark.parametrize("holds", [False, True])
def test_a_policy_that_keeps_what_it_sees_keeps_its_lost_replicas(holds: bool) -> None:
    its = fleet(pool(minimum=0, maximum=9, startup_s=0.0))
    policy = Keeping(5, 0, holds=holds)
    result = simulate(trace(np.arange(900.0), 400, 40), without(its, 2), policy)
    assert set(policy.seen) == {5}
    assert set(result.series.ready[0].tolist()) == {3.0}


def test_a_policy_that_asks_for_more_gets_them_up_to_the_maximum() -> None:
    its = fleet(pool(minimum=0, maximum=9, startup_s=0.0))
    policy = Keeping(5, 1)
    simulate(trace(np.arange(900.0), 400, 40), without(its, 2), policy)
    assert policy.seen[:5] == [5, 6, 7, 8, 9]
    assert max(policy.seen) == 9


def test_no_more_replicas_are_lost_than_a_policy_asks_for() -> None:
    its = fleet(pool(minimum=0, maximum=9, startup_s=0.0))
    result = simulate(trace(np.arange(900.0), 400, 40), without(its, 2), Keeping(1, 0))
    assert not result.series.ready.any()
