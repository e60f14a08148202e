"""Prefix caches: what is found, what it saves, and what has to go."""

import gzip
import json

import numpy as np
import pytest

from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import KvLink
from simulation.policies.static import Static
from simulation.trace import PrefixBlocks
from tests.shared_folder import DATA, shared
from tests.simulation.builders import fleet, linear_seconds, pool, profile, trace


def replay(prof, arrival, isl, osl, lists, block=16, count=1, routing=None, **how):
    return simulate(
        trace(arrival, isl, osl, blocks=(lists, block)),
        fleet(pool(prof, **{"prefix_cache": True, **how}), routing=routing),
        Static([count]),
        duration_s=256.0,
    )


def rate(result):
    return result.totals.hit_tokens.sum() / result.totals.looked_up_tokens.sum()


def test_a_repeated_prompt_computes_its_last_tokens_alone():
    prof = profile()
    result = replay(prof, [0.0, 20.0], [60, 60], [1, 1], [[1, 2, 3, 4], [1, 2, 3, 4]])
    # 48 of 60 tokens are in three whole blocks; the fourth is not whole.
    assert result.totals.hit_tokens[0] == 48
    assert result.requests.ttft_s.tolist() == [
        linear_seconds(prof, 0, 60),
        linear_seconds(prof, 0, 12),
    ]
    assert result.series.hit_rate[0].tolist()[:1] == [0.4]


def test_off_means_off():
    lists = [[1, 2, 3, 4]] * 2
    requests = trace([0.0, 20.0], [60, 60], [1, 1], blocks=(lists, 16))
    result = simulate(requests, fleet(pool()), Static([1]), duration_s=64.0)
    assert result.totals.looked_up_tokens[0] == 0
    assert np.isnan(result.series.hit_rate).all()
    plain = trace([0.0, 20.0], [60, 60], [1, 1])
    cached = simulate(plain, fleet(pool(prefix_cache=True)), Static([1]), duration_s=64.0)
    np.testing.assert_array_equal(cached.requests.ttft_s, result.requests.ttft_s)


def test_the_cached_context_is_attended_to():
    """Pairs of queries and keys of the missing tokens count those that were found."""
    from simulation.performance.adjusted_profile import adjust_profile
    from simulation.performance.curves import Part, grid

    # A prompt token takes as many seconds as it has keys in the mean, over 1024.
    part = Part(np.array([1.0, 65.0]), np.array([0.0, 64.0]), np.array([[0, 64.0], [0, 4160.0]]))
    prof = adjust_profile(profile(), curve=grid(prefill=Part(part.x, part.y, part.seconds / 1024)))
    result = replay(prof, [0.0, 200.0], [60, 60], [1, 1], [[1, 2, 3, 4]] * 2)
    assert result.requests.ttft_s == pytest.approx([60 * 30 / 1024, 12 * (48 + 6) / 1024])


def test_more_memory_never_finds_less():
    """One request at a time, prompts of one length: LRU is a stack algorithm."""
    rng = np.random.default_rng(3)
    chains = [[c, 100 + c, 200 + c] for c in range(20)]
    lists = [chains[i] for i in rng.zipf(1.4, 400) % 20]
    n = len(lists)
    rates = [
        rate(replay(profile(kv=kv), np.arange(n) * 0.5, [49] * n, [1] * n, lists))
        for kv in (64, 128, 256, 400, 640, 1200)
    ]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def test_blocks_are_checked_and_follow_their_requests():
    blocks = PrefixBlocks(np.array([0, 2, 2, 5]), np.arange(5), 16)
    assert blocks.rows(np.array([True, False, True])).ids.tolist() == [0, 1, 2, 3, 4]
    assert blocks.rows(slice(1, 3)).start.tolist() == [0, 0, 3]
    requests = trace([0.0, 1.0, 2.0], 40, 2, blocks=([[1], [2, 3], [4]], 16))
    inside = requests.window(1.0, 2.5)
    assert inside.blocks.ids.tolist() == [2, 3, 4]
    with pytest.raises(SimulationError, match="one list per request"):
        trace([0.0, 1.0], 40, 2, blocks=([[1]], 16))
    with pytest.raises(SimulationError, match="at least 0"):
        PrefixBlocks(np.array([0, 1]), np.array([-1]))
    with pytest.raises(SimulationError, match="Set prefix_cache on the prefill pool"):
        fleet(pool(role="prefill", link=KvLink(1.0, 1.0)), pool(role="decode", prefix_cache=True))
    with pytest.raises(SimulationError, match="Lower the maximum of pools, or use larger blocks"):
        replay(profile(kv=1 << 28), [0.0], [60], [1], [[1]], block=1)


@pytest.fixture(scope="module")
def mooncake():
    with gzip.open(shared(DATA / "traces/mooncake_conversation.jsonl.gz"), "rt") as lines:
        rows = [json.loads(line) for line in lines]
    lists = [row["hash_ids"] for row in rows]
    arrivals, isl, osl = (
        np.array([row[k] for row in rows]) for k in ("timestamp", "input_length", "output_length")
    )
    return arrivals / 1000.0, isl, osl, lists


def test_real_conversations_with_memory_for_all(mooncake):
    """What one instance with endless memory finds is what a set of all blocks seen has."""
    arrivals, isl, osl, lists = mooncake
    seen, hits = set(), 0
    for tokens, ids in zip(isl, lists, strict=True):
        blocks = ids[: tokens // 512]
        n = 0
        while n < min(len(blocks), (tokens - 1) // 512) and blocks[n] in seen:
            n += 1
        hits += 512 * n
        seen.update(blocks)
    prof = profile(
        alpha=1e-6, beta=0, gamma=1e-4, delta=1e-7, max_batch=4096, budget=1 << 20, kv=1 << 29
    )
    result = simulate(
        trace(arrivals, isl, osl, blocks=(lists, 512)),
        fleet(pool(prof, prefix_cache=True, maximum=1)),
        Static([1]),
    )
    assert result.totals.looked_up_tokens[0] == isl.sum()
    assert result.totals.hit_tokens[0] == hits
    assert hits / isl.sum() == pytest.approx(0.366, abs=0.02)  # blocks: the data's README
