"""Experts that the tokens of a measured layer reach: conserved, and by hand on small ones."""

import numpy as np
import pytest

from tools.catalogue.routing import EVEN, SKEWED, _busiest, _fill_up, expert_load


def _routed(pattern: str, *sizes: int) -> tuple[float, float]:
    reached, share = expert_load(pattern, *(np.array([float(size)]) for size in sizes))
    return float(reached[0]), float(share[0])


def test_tokens_dealt_out_evenly_reach_as_many_experts_as_they_can() -> None:
    assert _routed(EVEN, 4, 256, 8, 8) == (4.0, 1 / 8)  # 32 pairs, an eighth of them here
    assert _routed(EVEN, 64, 256, 8, 8) == (32.0, 1 / 8)  # all


@pytest.mark.parametrize("ep", [1, 4, 8])
def test_a_popular_rank_computes_no_less_than_its_share_and_every_pair_goes_somewhere(
    ep: int,
) -> None:
    random = np.random.default_rng(5)
    for tokens in (1, 3, 32, 33, 500):
        rank = _busiest(random, tokens, 64, 4, ep)
        assert rank.size == 64 // ep and (rank >= 0).all()
        assert tokens * 4 / ep <= rank.sum() <= tokens * 4
        if ep == 1:
            assert rank.sum() == tokens * 4


def test_one_token_reaches_its_own_experts_and_many_reach_all() -> None:
    assert _routed(SKEWED, 1, 256, 8, 1) == (8.0, 1.0)
    assert _routed(SKEWED, 100_000, 256, 8, 1) == (256.0, 1.0)


@pytest.mark.parametrize(("experts", "top_k"), [(256, 8), (384, 8), (128, 8)])
def test_a_popular_expert_takes_tokens_that_would_have_reached_others(
    experts: int, top_k: int
) -> None:
    for tokens in (16, 32, 64):
        alike = experts * (1.0 - (1.0 - top_k / experts) ** tokens)
        assert top_k <= _routed(SKEWED, tokens, experts, top_k, 1)[0] < alike


def test_the_least_are_raised_one_at_a_time() -> None:
    random = np.random.default_rng(2)
    for _ in range(20):
        counts, units = random.integers(0, 9, 6), int(random.integers(0, 30))
        slow = counts.copy()
        for _ in range(units):
            slow[slow.argmin()] += 1
        assert sorted(_fill_up(counts, units)) == sorted(slow)
