"""Cached tokens that a trace counts without blocks: no prefill, and memory like all others."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from simulation.carry_over import in_flight
from simulation.engine.run import simulate
from simulation.engine.stream_run import simulate_stream
from simulation.errors import SimulationError
from simulation.fleet import BATCHING, KvLink, Tier
from simulation.policies.static import Static
from simulation.results import COMPLETED
from simulation.sizing.capacity import PRECISION, SizingCase, capacity
from simulation.sizing.pd_ratio import PdService, closed_form_ratio
from simulation.sizing.trial import SharedPrompts
from simulation.sizing.workload import Workload
from simulation.stream.stream import Stream
from simulation.trace import CachedTokens, join_traces, joined_cached
from tests.simulation.builders import fleet, linear_seconds, pool, profile, trace


def requests(share, n=300, seed=1):
    rng = np.random.default_rng(seed)
    isl = rng.integers(1, 120, n)
    log = trace(np.sort(rng.uniform(0, 60, n)), isl, rng.integers(1, 20, n))
    return replace(log, blocks=CachedTokens(np.floor(share * isl)))


def replay(log, count=4, **how):
    return simulate(log, fleet(pool(**{"prefix_cache": True, **how})), Static([count]),
                    duration_s=128.0)  # fmt: skip


def test_only_the_rest_of_a_prompt_is_computed():
    prof = profile()
    log = replace(trace([0.0, 20.0], [60, 60], [1, 1]), blocks=CachedTokens(np.array([0, 45])))
    result = replay(log, 1, prof=prof)
    assert result.requests.ttft_s.tolist() == [
        linear_seconds(prof, 0, 60),
        linear_seconds(prof, 0, 15),
    ]
    assert result.totals.hit_tokens[0] == 45
    assert result.totals.looked_up_tokens[0] == 120


def test_at_least_one_token_is_computed():
    prof = profile()
    log = replace(trace([0.0], [60], [1]), blocks=CachedTokens(np.array([60])))
    assert replay(log, 1, prof=prof).requests.ttft_s[0] == linear_seconds(prof, 0, 1)


def test_cached_tokens_occupy_memory():
    log = replace(trace([0.0, 0.0], [500, 500], [4, 4]), blocks=CachedTokens(np.array([499, 499])))
    apart = replay(log, 1, prof=profile(kv=600))
    assert apart.requests.first_token_s[1] >= apart.requests.last_token_s[0]
    together = replay(log, 1, prof=profile(kv=1200))
    assert together.requests.first_token_s[1] < together.requests.last_token_s[0] + 1


@pytest.mark.parametrize("batching", BATCHING)
def test_without_hits_nothing_changes(batching):
    log = requests(0.0)
    result = replay(log, batching=batching)
    plain = replay(replace(log, blocks=None), batching=batching)
    off = replay(requests(0.7), batching=batching, prefix_cache=False)
    for other in (plain, off):
        np.testing.assert_array_equal(result.requests.first_token_s, other.requests.first_token_s)
        np.testing.assert_array_equal(result.requests.last_token_s, other.requests.last_token_s)


@pytest.mark.parametrize("batching", BATCHING)
def test_the_work_is_what_is_not_cached(batching):
    log = requests(0.6)
    result = replay(log, batching=batching)
    found = np.minimum(log.blocks.tokens, log.input_tokens - 1)
    assert (result.requests.outcome == COMPLETED).all()
    assert result.totals.hit_tokens[0] == found.sum()
    assert result.totals.looked_up_tokens[0] == log.input_tokens.sum()


def test_a_preempted_request_finds_its_prompt_again():
    log = replace(requests(0.6), output_tokens=np.full(300, 60))
    result = replay(log, 1, prof=profile(kv=300))
    assert (result.requests.outcome == COMPLETED).all()
    assert result.totals.preemptions[0] > 0
    assert result.totals.hit_tokens[0] > log.blocks.tokens.sum()


def test_a_prefill_pool_computes_less_and_sends_everything():
    log = requests(0.6)
    link = KvLink(kv_bytes_per_token=1.0, bytes_s=1e6)

    def pair(caching):
        first = pool(role="prefill", link=link, prefix_cache=caching, initial=2)
        second = pool(role="decode", initial=2)
        return simulate(log, fleet(first, second), Static([2, 2]), duration_s=128.0)

    warm, cold = pair(True), pair(False)
    assert warm.requests.ttft_s.mean() < cold.requests.ttft_s.mean()
    assert warm.totals.hit_tokens.tolist()[1] == 0
    assert (warm.requests.outcome == cold.requests.outcome).all()


def test_a_stream_gives_the_same():
    log = requests(0.5)
    them = fleet(pool(prefix_cache=True))
    whole = simulate(log, them, Static([4]), duration_s=128.0)
    pieces = simulate_stream(Stream.of(log, 16), them, Static([4]), duration_s=128.0, piece=16)
    assert pieces.totals.hit_tokens.tolist() == whole.totals.hit_tokens.tolist()
    assert pieces.totals.prefill_s.tolist() == whole.totals.prefill_s.tolist()


def test_requests_in_flight_keep_what_is_cached():
    log = requests(0.5)
    nothing = np.zeros(1)
    rest = in_flight(log, nothing + 1e6, nothing, 60.0)
    assert rest.blocks.tokens.tolist() == log.blocks.tokens[log.arrival_s < 60.0].tolist()
    both = join_traces([rest, log])
    assert len(both.blocks) == len(both)
    assert joined_cached([trace([0.0], [5], [1]), log]).tokens.tolist()[0] == 0


@pytest.mark.parametrize("tokens", [[-1], [1, 2]])
def test_counts_must_fit_the_requests(tokens):
    with pytest.raises(SimulationError):
        replace(trace([0.0], [60], [1]), blocks=CachedTokens(np.array(tokens)))


def sample(n=400):
    rng = np.random.default_rng(4)
    return rng.integers(20, 200, n), rng.integers(1, 30, n)


def test_a_larger_share_never_carries_less():
    isl, osl = sample()
    tier = Tier("t", ttft_s=2.0, tbt_s=0.5)
    case = SizingCase(profile(kv=4096), (isl, osl), tier)
    rates = [
        capacity(replace(case, blocks=CachedTokens(np.floor(share * isl))), requests=4000).max_rps
        for share in (0.0, 0.2, 0.5, 0.8, 1.0)
    ]
    assert rates[0] == capacity(case, requests=4000).max_rps
    assert all(b >= a * (1 - PRECISION) for a, b in pairwise(rates))
    assert rates[-1] > 1.3 * rates[0]


def test_closed_forms_know_the_share_too():
    isl, osl = sample()
    tier = Tier("t", ttft_s=2.0, tbt_s=0.5)
    prof = profile(kv=4096)

    def split(share):
        blocks = CachedTokens(np.floor(share * isl))
        work = Workload(isl, osl, cached=blocks)
        service = PdService(prof, prof, work, tier, KvLink(1.0, 1e6), blocks=blocks)
        return closed_form_ratio(service, 2, 2)

    none, half, most = split(0.0), split(0.5), split(0.9)
    plain = PdService(prof, prof, Workload(isl, osl), tier, KvLink(1.0, 1e6))
    assert none.max_rps == closed_form_ratio(plain, 2, 2).max_rps
    assert none.max_rps <= half.max_rps <= most.max_rps
    assert none.side == "prefill"
    assert none.max_rps < most.max_rps


def test_requests_repeat_with_their_cached_tokens():
    isl, osl = (column.astype(np.int32) for column in sample(5))
    again = SharedPrompts(isl, osl, CachedTokens(isl - 1)).repeat(12)
    assert (again.isl - again.blocks.tokens).tolist() == [1] * 12
