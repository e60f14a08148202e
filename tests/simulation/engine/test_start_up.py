"""Where starts take their weights from, and registration by ratio, worked out by hand."""

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.faults import RegionOutage
from simulation.fleet import KvLink
from simulation.start_times import Registration, StartUp
from tests.simulation.builders import SLOW, fleet, pool, profile, trace
from tests.simulation.scripted_policies import Asking

TIMES = {"reclaim_s": 10.0, "same_architecture_s": 20.0, "other_model_s": 40.0}
TIMES |= {"local_s": 80.0, "remote_s": 160.0}
EMPTY = trace([0.0], 10, 1, models=("x",))


def sources(*pools, first, asked, **how):
    result = simulate(EMPTY, fleet(*pools, **how), Asking(first, asked), duration_s=360.0)
    return result.totals.starts.tolist(), result.totals.starting_s.tolist(), result


def test_new_instances_have_their_weights_while_hosts_know_them():
    start = StartUp(**TIMES, warm_hosts=3)
    starts, starting_s, _ = sources(pool(SLOW, start_up=start), first=[1], asked=[5])
    assert starts == [[0, 0, 2, 2]]
    assert starting_s == [2 * 80 + 2 * 160]


def test_plain_startup_is_the_same_for_every_new_instance():
    starts, starting_s, _ = sources(pool(SLOW, startup_s=7.0), first=[1], asked=[3])
    assert (starts, starting_s) == ([[0, 0, 2, 0]], [14.0])


def test_a_host_that_fetched_weights_keeps_them():
    start = StartUp(**TIMES, warm_hosts=0)
    policy = Asking([0], [1], [1], [1], [0], [1])
    result = simulate(EMPTY, fleet(pool(SLOW, start_up=start)), policy, duration_s=480.0)
    assert result.totals.starts.tolist() == [[0, 0, 1, 1]]
    # Serving from 220 s to 240 s, again from 300 + 80 s.
    np.testing.assert_allclose(result.series.ready.sum(), (20 + 100) / 60)


def test_a_fetch_that_was_cancelled_leaves_no_weights():
    start = StartUp(**TIMES, warm_hosts=0)
    policy = Asking([0], [1], [0], [1])
    result = simulate(EMPTY, fleet(pool(SLOW, start_up=start)), policy, duration_s=360.0)
    assert result.totals.starts.tolist() == [[0, 0, 0, 2]]


@pytest.mark.parametrize(
    ("lent", "asked", "starts"), [(0, [1, 1], [0, 0, 0, 2]), (1, [0, 1], [0, 0, 1, 0])]
)
def test_an_outage_leaves_weights_where_they_were(lent, asked, starts):
    """Not of a fetch that was under way, but of an instance that was lent out."""
    start = StartUp(**TIMES, warm_hosts=0, lent=lent)
    served = fleet(pool(SLOW, start_up=start), faults=(RegionOutage("r", 100.0, 110.0),))
    policy = Asking([0], *([n] for n in asked))
    result = simulate(EMPTY, served, policy, duration_s=360.0)
    assert result.totals.starts.tolist() == [starts]


def test_lent_instances_are_taken_nearest_first():
    """Own, of the same model, of the same architecture, of any other model, then new ones."""
    start = StartUp(**TIMES)
    lending = StartUp(**TIMES, lent=1)
    pools = (
        pool(SLOW, start_up=lending, architecture="llama"),
        pool(SLOW, start_up=lending),  # another pool of the same model
        pool(SLOW, model="near", start_up=lending, architecture="llama"),
        pool(SLOW, model="far", start_up=lending, architecture="bloom"),
        pool(SLOW, model="away", region="q", start_up=lending, architecture="llama"),
        pool(profile(tp=2), model="wide", start_up=lending, architecture="llama"),
    )
    assert start.lent == 0
    starts, starting_s, result = sources(
        *pools, regions=("r", "q"), first=[1, 0, 0, 0, 0, 0], asked=[6, 0, 0, 0, 0, 0]
    )
    assert starts[0] == [2, 2, 1, 0]
    assert starting_s[0] == 10 + 10 + 20 + 40 + 80
    # What was taken left its own pool; the others are lent to the end.
    assert result.totals.donated_s.tolist() == [60.0, 60.0, 60.0, 60.0, 360.0, 360.0]


def test_without_a_time_for_it_no_other_models_instance_is_taken():
    start = StartUp(reclaim_s=10.0, local_s=80.0, lent=1)
    pools = (pool(SLOW, start_up=start), pool(SLOW, model="far", start_up=start))
    starts, _, _ = sources(*pools, first=[0, 0], asked=[2, 0])
    assert starts == [[1, 0, 1, 0], [0, 0, 0, 0]]


# --- registration --------------------------------------------------------------------------------


def apart(**how):
    link = KvLink(1.0, 1e6)
    return (
        pool(SLOW, role="prefill", link=link, startup_s=10.0),
        pool(SLOW, role="decode", startup_s=30.0, **how),
    )


def ready_over_time(first, asked, ratio, pools=None, every=60.0):
    result = simulate(
        EMPTY,
        fleet(*(pools or apart()), registration=ratio),
        Asking(first, asked, every=every),
        duration_s=120.0,
        interval_s=5.0,
    )
    return result.series.ready, result


def test_started_instances_wait_until_they_keep_the_ratio():
    ready, result = ready_over_time([1, 1], [3, 3], Registration(1.0, 0.1))
    # Prefill ones are loaded at 70 s and serve with the decode ones, at 90 s.
    np.testing.assert_allclose(ready[:, 12:18], 1.0)
    np.testing.assert_allclose(ready[:, 18:], 3.0)
    assert result.totals.starting_s.tolist() == [60.0, 60.0]
    free, _ = ready_over_time([1, 1], [3, 3], None)
    np.testing.assert_allclose(free[0, 14:], 3.0)


@pytest.mark.parametrize(
    ("first", "asked", "ratio", "at_once"),
    [
        # Two prefill to one decode within a half: 3 : 1 is the most.
        ([2, 1], [6, 3], Registration(2.0, 0.5), 3.0),
        # The side that is short registers as it comes.
        ([1, 4], [3, 6], Registration(1.0, 0.0), 3.0),
        # What waits registers when nothing loads any more.
        ([2, 2], [5, 2], Registration(1.0, 0.0), 5.0),
    ],
)
def test_as_many_register_as_the_ratio_allows(first, asked, ratio, at_once):
    ready, _ = ready_over_time(first, asked, ratio)
    np.testing.assert_allclose(ready[0, 14], at_once)
    np.testing.assert_allclose(ready[:, 18], asked)


def test_cancelled_starts_free_those_that_waited_for_them():
    link = KvLink(1.0, 1e6)
    pools = (
        pool(SLOW, role="prefill", link=link, startup_s=10.0),
        pool(SLOW, role="decode", startup_s=1000.0),
    )
    result = simulate(
        EMPTY,
        fleet(*pools, registration=Registration(1.0, 0.0)),
        Asking([1, 1], [2, 2], [2, 1]),
        duration_s=180.0,
    )
    np.testing.assert_allclose(result.series.ready[0], [1, 1, 2])


@pytest.mark.parametrize(("ratio", "tolerance"), [(0.0, 0.1), (1.0, -0.1), (np.inf, 0.0)])
def test_senseless_ratios_are_refused(ratio, tolerance):
    with pytest.raises(SimulationError, match="ratio above 0"):
        fleet(*apart(), registration=Registration(ratio, tolerance))


@pytest.mark.parametrize(
    "start", [StartUp(reclaim_s=-1.0), StartUp(lent=-1), StartUp(other_model_s=np.inf)]
)
def test_senseless_start_ups_are_refused(start):
    with pytest.raises(SimulationError, match="must be"):
        fleet(pool(SLOW, start_up=start))
