"""What a policy may ask for beside counts: soft scale-in, lending, speed."""

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.metrics import summarise
from simulation.start_times import StartUp
from tests.simulation.builders import SLOW, fleet, pool, trace
from tests.simulation.scripted_policies import Asking


def test_soft_scale_in_stays_takes_nothing_and_goes_after_its_time():
    soft = {"targets": [1], "soft_s": 90.0}
    result = simulate(
        trace([0.0, 61.0, 62.0], 10, [10, 200, 2]),
        fleet(pool(SLOW)),
        Asking([2], soft),
        duration_s=300.0,
    )
    # Out at 60 s, idle; stays until 150 s. The third request joins the busy one's batch.
    np.testing.assert_allclose(result.series.draining, [[0, 1, 0.5, 0, 0]])
    np.testing.assert_allclose(result.series.ready, [[2, 1, 1, 1, 1]])
    assert result.requests.last_token_s[2] == 64.0
    assert result.totals.starts.sum() == 0


def test_soft_scale_in_is_reinstated_at_once_when_the_target_rises():
    soft = {"targets": [1], "soft_s": 1000.0}
    result = simulate(
        trace([0.0, 121.0], 10, [10, 2]),
        fleet(pool(SLOW, startup_s=500.0)),
        Asking([2], soft, [2]),
        duration_s=240.0,
    )
    np.testing.assert_allclose(result.series.draining, [[0, 1, 0, 0]])
    np.testing.assert_allclose(result.series.ready, [[2, 1, 2, 2]])
    assert (result.totals.reinstated[0], result.totals.starts.sum()) == (1, 0)
    assert result.requests.last_token_s[1] == 123.0


def test_soft_instances_come_back_before_those_that_only_finish_their_work():
    # At 60 s the one with 5 tokens left goes for good, at 120 s the idle one softly; one returns.
    result = simulate(
        trace([0.0, 0.0, 0.0], 10, [300, 290, 50]),
        fleet(pool(SLOW)),
        Asking([3], {"targets": [2], "soft_s": 500.0}, {"targets": [1], "soft_s": 0.0}, [2]),
        duration_s=240.0,
    )
    np.testing.assert_allclose(result.series.ready, [[3, 2, 1, 2]])
    np.testing.assert_allclose(result.series.draining, [[0, 1, 2, 1]])
    # The soft one (idle) is back: the one that drains with 300 - 180 tokens left is not.
    assert result.totals.reinstated[0] == 1


def test_lent_instances_are_donated_hours_and_come_back_after_the_reclaim_time():
    start = StartUp(reclaim_s=30.0, local_s=600.0)
    asked = {"targets": [1], "lend": [True]}
    result = simulate(
        trace([0.0, 181.0], 10, [1, 1]),
        fleet(pool(SLOW, start_up=start)),
        Asking([3], asked, asked, [2]),
        duration_s=240.0,
    )
    np.testing.assert_allclose(result.series.lent, [[0, 2, 2, 1]])
    np.testing.assert_allclose(result.series.starting, [[0, 0, 0, 0.5]])
    np.testing.assert_allclose(result.series.ready, [[3, 1, 1, 1.5]])
    assert result.totals.donated_s[0] == 2 * 120 + 60
    assert result.totals.starts.tolist() == [[1, 0, 0, 0]]
    summary = summarise(result)
    assert summary.donated_gpu_hours == 300 / 3600
    assert summary.wasted_gpu_hours == 30 / 3600
    assert summary.starts["spot"] == 1
    lived = summary.gpu_hours + summary.donated_gpu_hours
    assert lived == pytest.approx(3 * 240 / 3600)


def test_of_what_is_lent_so_many_stay_as_the_policy_says():
    asked = {"targets": [1], "lend": [True], "keep_lent": [2]}
    result = simulate(
        trace([0.0], 10, [1]),
        fleet(pool(SLOW, start_up=StartUp(reclaim_s=30.0))),
        Asking([4], asked, asked | {"keep_lent": [0]}),
        duration_s=240.0,
    )
    np.testing.assert_allclose(result.series.lent, [[0, 2, 0, 0]])
    np.testing.assert_allclose(result.series.ready, [[4, 1, 1, 1]])
    assert result.totals.donated_s[0] == 2 * 60


def test_a_policy_sees_what_it_has_lent():
    policy = Asking([2], {"targets": [1], "lend": [True]})
    simulate(trace([0.0], 10, 1), fleet(pool(SLOW)), policy, duration_s=180.0)
    assert [seen.spare.tolist() for seen in policy.seen] == [[0], [1]]


def test_busy_instance_is_lent_out_once_its_work_is_done():
    result = simulate(
        trace([0.0, 0.0], 10, [100, 100]),
        fleet(pool(SLOW)),
        Asking([2], {"targets": [1], "lend": [True]}),
        duration_s=120.0,
    )
    np.testing.assert_allclose(result.series.draining, [[0, 40 / 60]])
    np.testing.assert_allclose(result.series.lent, [[0, 20 / 60]])


def test_speed_changes_iterations_from_the_next_one_on():
    result = simulate(
        trace([0.0], 10, 100),
        fleet(pool(SLOW)),
        Asking([1], {"targets": [1], "speed": [2.0]}, {"targets": [1], "speed": [0.5]}, every=10.5),
        duration_s=240.0,
    )
    # 11 tokens by 11 s (the one in progress ends as it was), then two a second: that in progress
    # at 21 s ends at 21 s, at which 31 are out; then one every two seconds.
    assert result.requests.last_token_s[0] == 21.0 + 2 * 69
    assert result.totals.iterations[0] == 100
    assert result.totals.decode_s[0] + result.totals.prefill_s[0] == 159.0


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"targets": [1], "speed": [0.0]}, "above 0"),
        ({"targets": [1], "speed": [1.0, 1.0]}, "one per pool"),
        ({"targets": [1], "soft_s": -1.0}, "soft_s"),
        ({"targets": [1], "lend": [True, False]}, "one per pool"),
        ({"targets": [1], "keep_lent": [1, 1]}, "one per pool"),
    ],
)
def test_senseless_actions_are_refused(asked, word):
    with pytest.raises(SimulationError, match=word):
        simulate(trace([0.0], 1, 1), fleet(), Asking([1], asked), duration_s=120.0)
