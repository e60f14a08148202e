"""Which waiting request an instance takes, worked out by hand; and what memory running out does."""

import numpy as np
import pytest

from simulation.engine import entry_points
from simulation.engine.allocation import allocate
from simulation.engine.holding import without_decisions
from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import KvLink, Tier
from simulation.policies.static import Static
from simulation.results import OUT_OF_MEMORY, REJECTED
from tests.simulation.builders import fleet, pool, profile, trace

TIERS = (Tier("slow", ttft_s=6.0), Tier("fast", ttft_s=2.0), Tier("batch", deferrable=True))


def order(scheduler, rows, tau_n_s=0.0, tau_p_s=0.0):
    """In which order requests ``(arrival, tier)`` are served, one at a time, 1 s each."""
    prof = profile(alpha=1.0, beta=0.0, gamma=1.0, delta=0.0, max_batch=1)
    served = fleet(pool(prof, scheduler=scheduler, tau_n_s=tau_n_s, tau_p_s=tau_p_s), tiers=TIERS)
    arrivals, tier = zip(*rows, strict=True)
    names = tuple(t.name for t in TIERS)
    requests = trace(arrivals, 8, 1, tier=tier, tiers=names)
    result = simulate(requests, served, Static([1], interval_s=1000.0), duration_s=60.0)
    return np.argsort(result.requests.first_token_s).tolist()


def test_what_is_deferrable_stays_behind():
    rows = [(0.0, 1), (0.1, 2), (0.2, 0), (0.3, 1)]
    for scheduler in ("edf", "pf"):
        assert order(scheduler, rows) == [0, 3, 2, 1]


def test_unknown_names_are_refused():
    with pytest.raises(SimulationError, match="there is no 'lifo'"):
        fleet(pool(scheduler="lifo"))
    with pytest.raises(SimulationError, match="there is no 'wait'"):
        fleet(pool(when_full="wait"))
    with pytest.raises(SimulationError, match="Use fcfs or pf"):
        fleet(pool(role="prefill", link=KvLink(1.0, 1.0)), pool(role="decode", scheduler="edf"))


def test_an_engine_without_preemption_fails_the_newest():
    """Two of 40 + 20 tokens in memory for 100: the second is lost once both hold 50."""
    prof = profile(kv=100, budget=128)
    how = {"duration_s": 60.0}
    requests = trace([0.0, 0.0], 40, 20)
    lost = simulate(requests, fleet(pool(prof, when_full="fail")), Static([1]), **how)
    kept = simulate(requests, fleet(pool(prof)), Static([1]), **how)
    assert lost.requests.outcome.tolist() == [0, REJECTED]
    assert lost.reject_reasons == {OUT_OF_MEMORY: 1}
    assert np.isnan(lost.requests.last_token_s[1])
    assert (kept.reject_reasons, kept.totals.preemptions[0]) == ({}, 1)
    assert lost.totals.preemptions[0] == 0
    assert lost.requests.last_token_s[0] == kept.requests.last_token_s[0]


def advanced(share, batch):
    """Eight requests on one instance, limits set at 1.25 s; the state at the end."""
    requests = trace(np.arange(8) / 8, 64, 100)
    served = fleet(pool(profile(budget=256, kv=2048), maximum=1))
    state = allocate(requests, served, 600.0, 60.0)
    entry_points.place(state.handle, np.array([1]))
    entry_points.advance(state.handle, 1.25, *without_decisions(state))
    before = int(state.instances[0]["running"])
    entry_points.limit(state.handle, np.array([batch]), np.array([share]), 1.25)
    entry_points.advance(state.handle, 1.75, *without_decisions(state))
    after = state.instances[0]["running"], state.instances[0]["kv_tokens"]
    entry_points.advance(state.handle, 500.0, *without_decisions(state))
    assert state.clock[0]["unfinished"] == 0
    return before, *after, state


def test_limits_hold_from_the_next_iteration_on():
    before, running, _, state = advanced(1.0, 8)
    assert (before, running, int(state.pools[0]["preemptions"])) == (8, 8, 0)
    _, running, kv, state = advanced(0.25, 8)
    assert kv <= 512 and running < 8 and state.pools[0]["preemptions"] > 0
    assert state.pools[0]["usable_kv_tokens"] == 512
    _, running, _, state = advanced(1.0, 2)
    assert (int(running), int(state.pools[0]["preemptions"])) == (8, 0)  # those running stay


def test_memory_is_never_limited_below_the_largest_request():
    *_, state = advanced(0.0, 8)
    assert state.pools[0]["usable_kv_tokens"] == 164
    *_, state = advanced(1.0, 1_000)
    assert state.pools[0]["max_batch"] == 8
