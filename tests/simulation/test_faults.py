"""Crashes, slow instances, outages and failed starts, worked out by hand; laws under many."""

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.faults import (
    EVENT,
    ControllerOutage,
    Crash,
    FailedStarts,
    RandomCrashes,
    RegionOutage,
    SlowInstance,
    failing_starts,
    fault_events,
)
from simulation.fleet import KvLink, Tier
from simulation.metrics import meets_slo, summarise
from simulation.policies.parts.service_controller import ServiceController
from simulation.policies.parts.stability import STAY
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.static import Static
from simulation.results import INSTANCE_FAILED, REASONS
from tests.simulation.builders import SLOW, fleet, pool, profile, trace
from tests.simulation.scripted_policies import Asking


def test_work_of_a_lost_instance_is_computed_again_elsewhere_and_keeps_what_it_gave():
    # Two instances, a request of 20 tokens on each; the first is lost at 5.5 s with 5 tokens out.
    result = simulate(
        trace([0.0, 0.0], 10, 20), fleet(pool(SLOW), faults=(Crash(0, 5.5),)), Static([2])
    )
    # It joins the other at 6 s: its 15 tokens computed again give the sixth, at 7 s.
    assert result.requests.first_token_s.tolist() == [1.0, 1.0]
    assert result.requests.last_token_s.tolist() == [21.0, 20.0]
    assert result.requests.pool.tolist() == [0, 0]
    totals = result.totals
    assert (totals.failures[0], totals.retried[0], totals.iterations[0]) == (1, 1, 5 + 21)
    # Half a second of the iteration that was lost is busy time all the same.
    np.testing.assert_allclose(totals.prefill_s + totals.decode_s, 5.5 + 21)
    assert result.series.output_tokens.sum() == 40


def test_a_request_without_a_retry_left_is_given_up_and_counted():
    for retries, outcome in ((0, 1), (1, 0)):
        result = simulate(
            trace([0.0], 10, 20),
            fleet(pool(SLOW), faults=(Crash(0, 5.5),), retries=retries),
            Static([2]),
        )
        assert result.requests.outcome.tolist() == [outcome]
    lost = simulate(
        trace([0.0], 10, 20),
        fleet(pool(SLOW), faults=(Crash(0, 5.5), Crash(0, 9.5))),
        Static([2]),
    )
    assert lost.reject_reasons == {INSTANCE_FAILED: 1}
    assert lost.requests.reason.tolist() == [REASONS.index(INSTANCE_FAILED)]
    assert np.isnan(lost.requests.first_token_s[0])
    assert lost.requests.pool[0] == -1
    assert not meets_slo(lost)[0]
    assert (summarise(lost).failures, summarise(lost).retried, lost.totals.retried[0]) == (2, 1, 1)


def test_more_crashes_than_can_be_meant_are_refused():
    with pytest.raises(SimulationError, match="about 2,400,000 crashes"):
        fault_events((RandomCrashes(100.0),), np.array([1000]), ("r",), 24 * 3600.0, 0)


def test_policy_replaces_what_was_lost():
    result = simulate(
        trace([0.0, 30.0], 10, 20),
        fleet(pool(SLOW, startup_s=10.0), faults=(Crash(0, 25.0),)),
        Static([1], interval_s=60.0),
        duration_s=120.0,
    )
    # Nothing serves until the policy is asked again at 60 s and its instance is there at 70 s.
    assert result.requests.last_token_s.tolist() == [20.0, 90.0]
    assert result.series.held.tolist() == [[1.0, 0.0]]
    np.testing.assert_allclose(result.series.ready, [[25 / 60, 50 / 60]])


def test_nothing_happens_where_nothing_lives():
    result = simulate(
        trace([0.0], 10, 2), fleet(pool(SLOW), faults=(Crash(0, 0.0),)), Asking([0], [1])
    )
    assert result.totals.failures[0] == 0


def test_outage_sends_requests_elsewhere_at_the_latency_of_the_way():
    wire = [[0, 0.25], [0.25, 0]]
    pools = (pool(SLOW, region="a", startup_s=10.0), pool(SLOW, region="b"))
    result = simulate(
        trace([0.0, 100.0, 310.0], 10, [50, 2, 2], regions=("a",)),
        fleet(*pools, regions=("a", "b"), latency=wire, faults=(RegionOutage("a", 10.0, 200.0),)),
        Static([1, 1]),
        duration_s=360.0,
    )
    log = result.requests
    assert log.pool.tolist() == [1, 1, 0]
    # Ten tokens given (the tenth at 10 s is not out yet when the region goes), nine kept; over the
    # wire, and 41 more from 10.25 s on.
    assert log.last_token_s[0] == 10.25 + 41
    assert log.ttft_s[1] == 0.25 + 1.0 + 0.25
    # Nothing starts there before the end; the next instant is 240 s.
    np.testing.assert_allclose(result.series.ready[0], [10 / 60, 0, 0, 0, 50 / 60, 1])
    np.testing.assert_allclose(result.series.starting[0], [0, 0, 0, 0, 10 / 60, 0])


def test_outage_takes_kv_caches_on_their_way_with_it():
    link = KvLink(1.0, 1.0)  # a prompt of ten tokens travels ten seconds
    pools = [
        pool(SLOW, region=r, **how)
        for r in "ab"
        for how in ({"role": "prefill", "link": link}, {"role": "decode"})
    ]
    result = simulate(
        trace([0.0], 10, 3, regions=("a",)),
        fleet(*pools, regions=("a", "b"), faults=(RegionOutage("a", 5.0, 500.0),)),
        Static([1] * 4),
    )
    # Delivered at 11 s to nobody; its eleven tokens prefilled in b by 12 s, at b's decode at 23 s.
    assert result.requests.first_token_s[0] == 1.0
    assert result.requests.last_token_s[0] == 24.0
    assert result.requests.pool[0] == 3


def test_crash_of_the_decode_instance_begins_at_prefill_again():
    link = KvLink(1.0, 10.0)
    pools = (pool(SLOW, role="prefill", link=link), pool(SLOW, role="decode"))
    result = simulate(trace([0.0], 10, 10), fleet(*pools, faults=(Crash(1, 4.5),)), Static([1, 2]))
    # First token at 1 s, at the decode instance at 2 s, two more by 4 s; 13 tokens prefilled from
    # 4.5 s give the fourth, and travel 1.3 s; six more.
    assert result.requests.last_token_s[0] == pytest.approx(4.5 + 1 + 1.3 + 6)


def test_failed_starts_burn_their_time_and_are_tried_again():
    result = simulate(
        trace([0.0], 10, 2),
        fleet(pool(SLOW, startup_s=30.0), faults=(FailedStarts(nth=(1, 2)),)),
        Asking([0], [1]),
        duration_s=300.0,
    )
    # Asked for at 60 s, 120 s and 180 s; the third serves from 210 s.
    assert result.requests.last_token_s[0] == 212.0
    assert result.totals.failed_starts[0] == 2
    assert result.totals.starting_s[0] == 90.0
    assert result.totals.starts.sum() == 3


def test_draws_come_from_the_seed():
    faults = (RandomCrashes(0.5), FailedStarts(0.25), RegionOutage("r", 5.0, 9.0))
    maxima = np.array([10, 40])
    events, again, other = (
        fault_events(faults, maxima, ("r",), 7 * 86_400.0, seed) for seed in (1, 1, 2)
    )
    assert events.dtype == EVENT
    assert events.tobytes() == again.tobytes() != other.tobytes()
    assert np.all(np.diff(events["time"]) >= 0)
    crashes = np.bincount(events["target"][events["kind"] == 2])
    expected = 0.5 * 168 * maxima
    assert np.all(np.abs(crashes - expected) < 4 * np.sqrt(expected))
    fails = failing_starts(faults, 2, 1)
    assert abs(fails.mean() - 0.25) < 0.02
    assert failing_starts((), 2, 1).shape == (2, 0)


def busy(seed, **how):
    rng = np.random.default_rng(seed)
    n = 1500
    tiers = (Tier("t"), Tier("niw", deferrable=True, priority_after_s=300.0))
    pools = [
        pool(profile(), region=r, initial=3, minimum=1, maximum=12, startup_s=20.0, **how)
        for r in "ab"
    ]
    requests = trace(
        np.sort(rng.integers(0, 600 * 16, n)) / 16,
        rng.integers(1, 200, n),
        rng.integers(1, 60, n),
        region=rng.integers(2, size=n),
        tier=rng.integers(2, size=n),
        regions=("a", "b"),
        tiers=("t", "niw"),
    )
    faults = (
        RandomCrashes(60.0),
        SlowInstance(0, 50.0, 200.0, 2.5, 1),
        RegionOutage("a", 250.0, 330.0),
        FailedStarts(0.3),
    )
    return requests, fleet(
        *pools,
        tiers=tiers,
        regions=("a", "b"),
        latency=[[0, 0.25], [0.25, 0]],
        faults=faults,
        retries=2,
    )


@pytest.mark.parametrize("seed", range(6))
def test_laws_hold_under_many_faults_and_the_same_seed_gives_the_same_bytes(seed):
    requests, shaken = busy(seed)
    first, again = (
        simulate(requests, shaken, UnifiedReactive(), seed=seed, duration_s=600.0) for _ in "ab"
    )
    assert first.totals.failures.sum() > 10
    assert first.totals.retried.sum() > 10  # of a fleet that sees its queues and grows
    assert first.requests.last_token_s.tobytes() == again.requests.last_token_s.tobytes()
    counts = np.bincount(first.requests.outcome, minlength=3)
    assert counts.sum() == len(requests)
    assert counts[1] == sum(first.reject_reasons.values())
    # Every output token of a completed request was given out once, whatever was computed again.
    assert summarise(first).completed == counts[0]


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        (Crash(1, 5.0), "its pool"),
        (Crash(0, -5.0), "at_s"),
        (Crash(0, 5.0, -1), "replica"),
        (SlowInstance(0, 5.0, 4.0, 2.0), "from_s"),
        (SlowInstance(0, 5.0, 6.0, 0.0), "factor"),
        (RegionOutage("x", 0.0, 1.0), "'x' is not known"),
        (RandomCrashes(-1.0), "per_instance_hour"),
        (FailedStarts(1.5), "probability"),
    ],
)
def test_senseless_faults_are_refused(fault, word):
    with pytest.raises(SimulationError, match=word):
        fleet(faults=(fault,))


@pytest.mark.parametrize(("kept", "then"), [(True, 3), (False, 2)])
def test_a_controller_that_dies_decides_nothing_and_resumes(kept, then):
    """Asked at 60 and 300 s, not at 120, 180 and 240; what it asked for before is started."""
    policy = Asking([1], [2], [3], [4])
    begun = []
    reset = policy.reset
    policy.reset = lambda served: begun.append(served.pools[0].initial) or reset(served)
    result = simulate(
        trace([0.0], 10, 2),
        fleet(pool(SLOW, startup_s=60.0), faults=(ControllerOutage(90.0, 250.0, kept),)),
        policy,
        duration_s=420.0,
    )
    assert [look.time_s for look in policy.seen] == [300.0, 360.0] if not kept else [60, 300, 360]
    np.testing.assert_allclose(result.series.ready[0], [1, 1, 2, 2, 2, 2, then])
    # Afresh from the two that there are, not from the one that the fleet began with.
    assert begun == ([1] if kept else [1, 2])


class Still(ServiceController):
    """Keeps its ratio and does nothing else."""

    def direction_and_instances(self, i, observation):
        return STAY, int(observation.ready[list(self.driving_pools(self.services[i]))].sum())


@pytest.mark.parametrize(("kept", "prefill"), [(True, 4), (False, 1)])
def test_a_ratio_that_was_not_persisted_is_that_of_what_is_left(kept, prefill):
    """Three of four prefill instances are lost while nobody looks."""
    lost = tuple(Crash(0, 150.0, i) for i in range(3))
    result = simulate(
        trace([0.0], 10, 2),
        fleet(
            pool(SLOW, role="prefill", link=KvLink(1.0, 1e9), initial=4, startup_s=30.0),
            pool(SLOW, role="decode", initial=4),
            faults=(*lost, ControllerOutage(90.0, 250.0, kept)),
        ),
        Still(name="still"),
        duration_s=420.0,
    )
    np.testing.assert_allclose(result.series.ready[0, -1], prefill)


def test_an_outage_of_nobody_changes_nothing():
    requests = trace(np.arange(0.0, 300.0, 2.0), 10, 20)
    there = fleet(pool(SLOW))
    beyond = fleet(pool(SLOW), faults=(ControllerOutage(1e6, 2e6, False),))
    first, other = (
        simulate(requests, serving, UnifiedReactive(), duration_s=300.0)
        for serving in (there, beyond)
    )
    assert first.requests.last_token_s.tobytes() == other.requests.last_token_s.tobytes()
    with pytest.raises(SimulationError, match="0 <= from_s < to_s"):
        fleet(pool(SLOW), faults=(ControllerOutage(20.0, 10.0),))
