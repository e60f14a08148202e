"""Sessions: a later turn waits for the answer before it."""

from dataclasses import replace

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.faults import Crash
from simulation.fleet import BATCHING, KvLink, Tier
from simulation.policies.static import Static
from simulation.results import COMPLETED, REJECTED, UNFINISHED
from simulation.trace import joined_sessions, previous_turns
from tests.simulation.builders import fleet, linear_seconds, pool, profile, trace


def requests(n=400, sessions=60, seed=2, **how):
    rng = np.random.default_rng(seed)
    log = trace(np.sort(rng.uniform(0, 60, n)), rng.integers(1, 120, n), rng.integers(1, 20, n),
                **how)  # fmt: skip
    return replace(log, session=rng.integers(-1, sessions, n))


def replay(log, *pools, count=4, duration_s=128.0, **how):
    them = fleet(*(pools or (pool(),)), **how)
    return simulate(log, them, Static([count] * len(them.pools)), duration_s=duration_s)


def in_turn(result):
    """Return the first tokens of later turns, and the last tokens of the turns before them."""
    previous = previous_turns(result.trace.session)
    later = np.flatnonzero(previous >= 0)
    return result.requests.first_token_s[later], result.requests.last_token_s[previous[later]]


@pytest.mark.parametrize("batching", BATCHING)
def test_every_turn_starts_after_the_answer_before_it(batching):
    log = requests()
    result = replay(log, pool(batching=batching))
    assert (result.requests.outcome == COMPLETED).all()
    first, before = in_turn(result)
    assert len(first) > 300
    assert (first > before).all()
    free, answer = in_turn(replace(replay(replace(log, session=None)), trace=log))
    assert (free < answer).any()


def test_a_turn_that_waits_is_timed_from_when_it_is_sent():
    prof = profile()
    log = replace(trace([0.0, 0.0], [60, 60], [5, 1]), session=np.array([0, 0]))
    result = replay(log, pool(prof), count=1)
    sent = result.requests.last_token_s[0]
    assert result.requests.first_token_s[1] == sent + linear_seconds(prof, 0, 60)
    assert result.requests.ttft_s[1] == linear_seconds(prof, 0, 60)


def test_sessions_of_one_turn_change_nothing():
    log = requests()
    each = replay(replace(log, session=np.arange(len(log))))
    plain = replay(replace(log, session=None))
    assert each.requests.last_token_s.tobytes() == plain.requests.last_token_s.tobytes()


def test_a_rejected_turn_lets_the_next_one_go():
    log = trace([0.0, 1.0, 2.0], [60, 5000, 60], [5, 5, 5])
    result = replay(replace(log, session=np.zeros(3)))
    assert result.requests.outcome.tolist() == [COMPLETED, REJECTED, COMPLETED]


def test_a_turn_after_an_answer_that_never_ends_is_not_sent():
    log = replace(trace([0.0, 1.0], [60, 60], [5, 5]), session=np.zeros(2))
    result = replay(log, pool(startup_s=1e9, initial=0), count=0)
    assert (result.requests.outcome == UNFINISHED).all()
    assert np.isnan(result.requests.first_token_s).all()


def test_turns_survive_lost_replicas_and_full_memory():
    log = requests()
    crash = tuple(Crash(0, at) for at in (10.0, 20.0, 30.0))
    for when_full in ("preempt", "fail"):
        them = pool(profile(kv=150), when_full=when_full)
        result = replay(log, them, faults=crash, retries=0)
        done = result.requests.outcome != UNFINISHED
        assert done.all()
        assert (result.requests.outcome == REJECTED).any()
        first, before = in_turn(result)
        both = np.isfinite(first) & np.isfinite(before)
        assert (first[both] > before[both]).all()


def test_the_way_back_of_an_answer_counts():
    """The answer takes a second to its user, and the next prompt a second to the replica."""
    log = trace([0.0, 0.0], [60, 60], [2, 1], regions=("here",))
    log = replace(log, session=np.zeros(2))
    there = pool(region="there")
    result = replay(log, there, count=1, regions=("here", "there"), latency=[[0, 1], [1, 0]])
    first, before = in_turn(result)
    assert first[0] >= before[0] + 2.0


def test_separate_pools_and_deferred_tiers_take_turns_too():
    link = KvLink(kv_bytes_per_token=1.0, bytes_s=1e4)
    pools = pool(role="prefill", link=link), pool(role="decode")
    tiers = Tier("t"), Tier("later", e2e_s=600.0, deferrable=True, priority_after_s=5.0)
    log = requests(tiers=("t", "later"), tier=np.arange(400) % 2)
    result = replay(log, *pools, tiers=tiers)
    assert (result.requests.outcome == COMPLETED).all()
    first, before = in_turn(result)
    assert (first > before).all()


def test_traces_do_not_share_sessions():
    log = requests(n=3, sessions=1)
    session = joined_sessions([log, replace(log, session=None), log])
    assert session[3:6].tolist() == [-1] * 3
    known = session[session >= 0]
    assert len(known) == 0 or set(session[:3]) & set(session[6:]) <= {-1}


def test_sessions_must_fit_the_requests():
    with pytest.raises(SimulationError):
        replace(trace([0.0], [60], [1]), session=np.zeros(2))


def test_a_turn_comes_its_think_time_after_the_answer_before_it():
    alone = replay(replace(trace([0.0, 50.0], [60, 60], [5, 1])), count=1)
    end = float(alone.requests.last_token_s[0])
    for arrival, think, sent in [
        (0.0, 30.0, end + 30.0),
        (20.0, 30.0, end + 30.0),
        (50.0, 3, 50.0),
    ]:
        log = trace([0.0, arrival], [60, 60], [5, 1])
        result = replay(replace(log, session=np.zeros(2), think_s=[0.0, think]), count=1)
        ttft = result.requests.ttft_s[1]
        assert result.requests.first_token_s[1] == pytest.approx(sent + ttft)
        assert ttft == pytest.approx(float(alone.requests.ttft_s[1]))


def test_think_times_keep_every_answer_and_its_pause():
    log = requests()
    think = np.random.default_rng(4).uniform(0, 3, len(log))
    result = replay(replace(log, think_s=think))
    previous = previous_turns(log.session)
    later = np.flatnonzero(previous >= 0)
    first, before = in_turn(result)
    done = np.isfinite(first)
    assert done.sum() > 250
    assert (first - before >= think[later])[done].all()


def test_think_times_must_fit_the_requests():
    for wrong in ([1.0, 1.0], [-1.0]):
        with pytest.raises(SimulationError):
            replace(trace([0.0], [60], [1]), think_s=wrong)
