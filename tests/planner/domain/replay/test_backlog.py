"""Windows of a study begin with the requests in flight."""

from dataclasses import replace

import numpy as np
import pytest

from planner.domain.progress import silent
from planner.domain.replay.backtest_windows import past_studies
from planner.domain.replay.cells import carried_into
from planner.domain.replay.replay import run_policy
from planner.domain.study import Study
from planner.policies.choice import policy_of
from tests.planner.domain.replay.test_replay import study


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study(tmp_path_factory.mktemp("backlog"))


def test_it_is_as_large_as_the_rate_times_the_life_of_a_request(toy: Study) -> None:
    carried = carried_into(toy)
    assert carried is not None
    assert carried.models == toy.trace.models and carried.start_s == toy.window.start_s
    for m, lengths in enumerate(toy.traffic.lengths):
        _, size = toy.sizes.capacity[m, 0]
        life = size.ttft_s + float(lengths[1].mean()) * size.tbt_s
        rate = (toy.trace.model[toy.trace.arrival_s < 120] == m).sum() / 120
        assert (carried.model == m).sum() == pytest.approx(rate * life, rel=0.5, abs=6)


def test_deferrable_requests_are_not_in_flight_and_nothing_is_before_all_traffic(
    toy: Study,
) -> None:
    waiting = replace(toy, traffic=replace(toy.traffic, deferrable=frozenset(toy.traffic.tiers)))
    assert carried_into(waiting) is None
    begins = toy.traffic.demand.start_s
    assert carried_into(replace(toy, window=replace(toy.window, start_s=begins))) is None


def test_a_replay_counts_the_same_requests_and_pays_less_for_work_after_it(toy: Study) -> None:
    begun = replace(toy, carried=carried_into(toy))
    empty, full = (
        run_policy(its, policy_of("flat-peak"), seed=1, progress=silent).summary
        for its in (toy, begun)
    )
    assert empty.arrived == full.arrived == len(toy.trace)
    assert full.after_cost_usd < empty.after_cost_usd
    assert full.recurring_usd == pytest.approx(empty.recurring_usd, rel=1e-6)


def test_past_windows_begin_with_theirs(toy: Study) -> None:
    studies = past_studies(toy)
    assert studies
    for its in studies:
        if its.window.start_s > toy.traffic.demand.start_s + 120:
            assert its.carried is not None
            assert np.isin(its.carried.model, np.unique(its.trace.model)).all()
