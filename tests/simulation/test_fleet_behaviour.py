"""Routing, deferred requests and scaling, on fleets small enough to work out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import Tier
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.schedule_follower import ScheduleFollower
from simulation.policies.static import Static
from tests.simulation.builders import SLOW, SLOW_ALONE, fleet, linear_seconds, pool, profile, trace


def steps(*counts, every=60.0):
    """One pool, ``counts[i]`` instances from ``i * every`` seconds on."""
    schedule = FixedSchedule(np.arange(len(counts)) * every, [[c] for c in counts])
    return ScheduleFollower(schedule, interval_s=every)


def test_start_up_delays_service_and_is_wasted_time():
    prof = profile()
    result = simulate(
        trace([5.0], 32, 1), fleet(pool(prof, startup_s=10.0)), steps(0, 1), duration_s=120.0
    )
    assert result.requests.first_token_s[0] == 70.0 + linear_seconds(prof, 0, 32)
    assert result.totals.starting_s[0] == 10.0
    assert result.series.starting.tolist() == [[0, 10 / 60]]
    assert result.series.ready.tolist() == [[0, 50 / 60]]


def test_draining_instance_finishes_its_work_and_takes_no_new():
    # Two requests of 100 s, one on each instance; at 60 s one instance is drained.
    result = simulate(
        trace([0.0, 0.0, 61.0], [10, 20, 10], [100, 100, 2]),
        fleet(pool(SLOW)),
        steps(2, 1),
        duration_s=240.0,
    )
    assert result.requests.last_token_s[:2].tolist() == [100.0, 100.0]
    # The third joins the other instance's batch instead of an idle one's.
    assert result.totals.iterations[0] == 200
    np.testing.assert_allclose(result.series.draining, [[0, 40 / 60, 0, 0]])
    np.testing.assert_allclose(result.series.ready, [[2, 1, 1, 1]])


def test_scale_out_takes_a_draining_instance_back_before_starting_one():
    result = simulate(
        trace([0.0, 0.0], 10, [170, 170]), fleet(pool(SLOW)), steps(2, 1, 2), duration_s=180.0
    )
    assert result.totals.starting_s[0] == 0.0
    np.testing.assert_allclose(result.series.draining, [[0, 1, 0]])
    np.testing.assert_allclose(result.series.ready, [[2, 1, 2]])


def test_scale_in_cancels_starting_instances_first():
    result = simulate(
        trace([0.0], 10, 170), fleet(pool(SLOW, startup_s=100.0)), steps(1, 3, 1), duration_s=240.0
    )
    assert result.totals.starting_s[0] == 2 * 60.0
    np.testing.assert_allclose(result.series.ready, [[1, 1, 1, 1]])
    np.testing.assert_allclose(result.series.draining, 0.0)


def test_newest_starting_instance_is_cancelled_first():
    result = simulate(
        trace([0.0], 10, 1), fleet(pool(SLOW, startup_s=150.0)), steps(0, 1, 2, 1), duration_s=300.0
    )
    # The one asked for at 60 s serves from 210 s; the one asked for at 120 s lived 60 s.
    np.testing.assert_allclose(result.series.ready, [[0, 0, 0, 30 / 60, 1]])
    assert result.totals.starting_s[0] == 150.0 + 60.0


def test_targets_are_clipped_to_the_pool():
    limits = fleet(pool(SLOW, minimum=1, maximum=3, startup_s=0.0))
    result = simulate(trace([0.0], 10, 1), limits, steps(0, 9), duration_s=120.0)
    np.testing.assert_allclose(result.series.ready, [[1, 3]])


def test_region_without_the_model_is_served_from_elsewhere():
    wire = [[0, 0.5], [0.5, 0]]
    result = simulate(
        trace([0.0], 10, 1, regions=("a",)),
        fleet(pool(SLOW, region="b"), regions=("a", "b"), latency=wire),
        Static([1]),
    )
    assert result.requests.ttft_s[0] == 0.5 + 1.0 + 0.5


def test_request_on_the_wire_to_a_drained_region_is_routed_again():
    wire = [[0, 2.0], [2.0, 0]]
    pools = (pool(SLOW, region="a", startup_s=5.0), pool(SLOW, region="b"))
    policy = ScheduleFollower(FixedSchedule([0.0, 60.0, 120.0], [[0, 1], [0, 0], [1, 0]]))
    result = simulate(
        trace([59.0], 10, 1, regions=("a",)),
        fleet(*pools, regions=("a", "b"), latency=wire),
        policy,
        duration_s=180.0,
    )
    assert result.requests.pool.tolist() == [0]
    assert result.requests.first_token_s[0] == 125.0 + 1.0


NIW = Tier("niw", deferrable=True, priority_after_s=600.0)


def test_deferred_requests_are_let_in_two_by_two_at_control_instants():
    result = simulate(
        trace([0.0] * 4, 10, 1, tiers=("niw",)),
        fleet(pool(SLOW), tiers=[NIW]),
        Static([1]),
        duration_s=240.0,
    )
    # Two at 60 s; each of the two completions at 61 s lets in two more.
    assert result.requests.first_token_s.tolist() == [61.0, 61.0, 62.0, 62.0]


@pytest.mark.parametrize(("utilisation", "released"), [(0.45, 2), (0.55, 1), (0.65, 0)])
def test_releases_depend_on_utilisation(utilisation, released):
    tiers = [Tier("t"), NIW]
    # The first request holds its prompt, the first token and one per decode: 60 at the instant.
    isl = [int(1000 * utilisation) - 60, 10, 10]
    result = simulate(
        trace([0.0, 0.0, 0.0], isl, [200, 1, 1], tier=[0, 1, 1], tiers=("t", "niw")),
        fleet(pool(SLOW), tiers=tiers),
        Static([1]),
        duration_s=61.5,
    )
    first = result.requests.first_token_s[1:]
    assert (first <= 62.0).sum() == released


def test_aged_deferred_requests_go_at_once():
    tiers = [Tier("t"), Tier("niw", deferrable=True, priority_after_s=100.0)]
    result = simulate(
        trace([0.0, 0.0], [700, 10], [250, 1], tier=[0, 1], tiers=("t", "niw")),
        fleet(pool(SLOW), tiers=tiers),
        Static([1]),
        duration_s=240.0,
    )
    assert result.requests.first_token_s[1] == 121.0


@pytest.mark.parametrize(
    ("tier", "seconds"),
    [
        (Tier("niw", e2e_s=86_400.0, deferrable=True), 36_000.0),  # SageServe
        (Tier("niw", e2e_s=600.0, deferrable=True), 250.0),
        (Tier("niw", e2e_s=600.0, deferrable=True, priority_after_s=60.0), 60.0),
        (Tier("niw", deferrable=True), 36_000.0),
    ],
)
def test_a_deferred_request_is_urgent_by_its_own_deadline(tier, seconds):
    assert tier.urgent_after_s == pytest.approx(seconds)


def test_what_becomes_urgent_first_is_released_first():
    tiers = [
        Tier("t"), Tier("day", e2e_s=86_400.0, deferrable=True),
        Tier("hour", e2e_s=3600.0, deferrable=True),
    ]  # fmt: skip
    result = simulate(
        trace([0.0, 1.0, 2.0, 3.0], 10, 1, tier=[1, 1, 2, 2], tiers=("t", "day", "hour")),
        fleet(pool(SLOW_ALONE), tiers=tiers),
        Static([1]),
        duration_s=240.0,
    )
    assert result.requests.first_token_s.tolist() == [63.0, 64.0, 61.0, 62.0]


def test_interactive_requests_are_admitted_before_released_ones():
    result = simulate(
        trace([0.0, 0.0, 60.25], 10, [1, 1, 1], tier=[1, 1, 0], tiers=("t", "niw")),
        fleet(pool(SLOW_ALONE), tiers=[Tier("t"), NIW]),
        Static([1]),
        duration_s=120.0,
    )
    # Both deferred ones are released at 60 s; the interactive one overtakes the second.
    assert result.requests.first_token_s.tolist() == [61.0, 63.0, 62.0]


def test_waiting_deferred_request_is_promoted_when_it_ages():
    tiers = [Tier("t"), Tier("niw", deferrable=True, priority_after_s=90.0)]
    # Released at 60 s behind nothing; then a stream of long interactive ones keeps it out until it
    # is promoted at 120 s, behind those waiting by then.
    arrival = [0.0, 59.75, 60.25, 60.25, 130.0]
    result = simulate(
        trace(arrival, 10, [1, 40, 40, 40, 40], tier=[1, 0, 0, 0, 0], tiers=("t", "niw")),
        fleet(pool(SLOW_ALONE), tiers=tiers),
        Static([1]),
        duration_s=240.0,
    )
    assert result.requests.first_token_s[0] == 59.75 + 120.0 + 1.0


def test_models_without_a_pool_and_oversized_requests_are_rejected_with_a_reason():
    result = simulate(
        trace([0.0, 1.0, 2.0], [10, 10, 999], [1, 1, 2], model=[0, 1, 0], models=("m", "x")),
        fleet(pool(SLOW)),
        Static([1]),
    )
    assert result.requests.outcome.tolist() == [0, 1, 1]
    assert result.reject_reasons == {
        "no pool serves the model": 1,
        "input and output exceed the KV capacity of every pool of the model": 1,
    }


def test_requests_too_large_for_one_pool_go_to_another():
    small = profile(alpha=1.0, beta=0.0, gamma=1.0, delta=0.0, kv=100, budget=1000)
    result = simulate(trace([0.0], 500, 2), fleet(pool(small), pool(SLOW)), Static([1, 1]))
    assert result.requests.pool.tolist() == [1]


def test_what_never_can_be_served_is_unfinished_not_lost():
    result = simulate(trace([0.0], 10, 1), fleet(pool(SLOW)), Static([0]))
    assert result.requests.outcome.tolist() == [2]
    assert result.requests.pool.tolist() == [-1]


def test_empty_trace_costs_idle_hours():
    result = simulate(trace([], 1, 1), fleet(pool(SLOW)), Static([2]), duration_s=90.0)
    assert result.totals.idle_s[0] == 180.0
    assert result.series.ready.tolist() == [[2, 2]]


@pytest.mark.parametrize(
    ("names", "served", "counts", "window", "word"),
    [
        ({"regions": ("nowhere",)}, fleet(), [1], {}, "nowhere"),
        ({"tiers": ("odd",)}, fleet(), [1], {}, "odd"),
        ({}, fleet(pool(minimum=5, maximum=4)), [1], {}, "minimum"),
        ({}, fleet(pool(minimum=-1)), [1], {}, "minimum"),
        ({}, fleet(pool(startup_s=-1.0)), [1], {}, "startup_s"),
        ({}, fleet(pool(startup_s=np.nan)), [1], {}, "startup_s"),
        ({}, fleet(), [1], {"duration_s": 0.0}, "positive"),
        ({}, fleet(), [1], {"interval_s": 0.0}, "positive"),
        ({}, fleet(), [1, 2], {}, "one per pool"),
        ({}, fleet(latency=[[-1.0]]), [1], {}, "Latency"),
    ],
)
def test_senseless_replays_are_refused(names, served, counts, window, word):
    with pytest.raises(SimulationError, match=word):
        simulate(trace([0.0], 1, 1, **names), served, Static(counts), **window)


def test_window_takes_what_arrives_before_its_end():
    arrivals = [0.0, np.nextafter(60.0, 0), 60.0, 61.0]
    at_epoch = replace(trace(arrivals, 1, 1), start_s=1_700_158_546.8)
    assert len(simulate(at_epoch, fleet(), Static([1]), duration_s=60.0).trace) == 2
    assert simulate(at_epoch, fleet(), Static([1])).duration_s == 120.0


def test_pool_without_instances_counts_requests_at_the_router_and_gets_its_first():
    result = simulate(
        trace([1.0], 10, 1), fleet(pool(SLOW, initial=0, startup_s=10.0)), UnifiedReactive()
    )
    assert result.requests.first_token_s[0] == 15.0 + 10.0 + 1.0


def test_progress_is_told_and_may_cancel():
    fractions = []
    simulate(trace([0.0], 1, 1), fleet(), Static([1]), duration_s=600.0, progress=fractions.append)
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert len(fractions) > 5

    def cancel(fraction):
        if fraction > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(trace([0.0], 1, 1), fleet(), Static([1]), duration_s=600.0, progress=cancel)


def test_progress_is_told_within_a_window_without_any_instant():
    n = 300_000
    fractions = []
    simulate(
        trace(np.arange(n) / 100, 1, 1),
        fleet(pool(profile(budget=1000, max_batch=64))),
        Static([40], interval_s=1e9),
        interval_s=1e9,
        duration_s=3000.0,
        progress=fractions.append,
    )
    assert fractions == sorted(fractions)
    assert len(fractions) > 2


def test_batches_that_no_memory_holds_are_refused():
    large = profile(max_batch=65_536, budget=65_536)
    n = 2000
    with pytest.raises(SimulationError, match="lower the capacity or the maximum"):
        simulate(trace(np.zeros(n), 1, 1), fleet(pool(large, maximum=1_000_000)), Static([1]))
