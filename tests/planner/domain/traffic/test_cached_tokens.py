"""Cached tokens of a log or of counts, from the file to sizes, ratios and drawn requests."""

from pathlib import Path

import numpy as np
import pytest

from planner.domain.pd.ratio_search import judge_ratios
from planner.domain.pd.service_pools import pairs_of, strictest_split
from planner.domain.progress import silent
from planner.domain.sizing.sizing import size
from planner.domain.traffic.forecast_requests import requests_ahead
from planner.domain.traffic.known_lengths import known_lengths, traffic_with_known_lengths
from planner.domain.traffic.sources import StoredTrace
from simulation.sizing.pd_simulation import no_report
from simulation.trace import CachedTokens, PrefixBlocks
from tests.planner.domain import builders as make

HORIZON = {"period_s": 600, "lead_s": 0, "duration_s": 600}


def log(folder: Path, share: float | None, **more: object) -> StoredTrace:
    rng = np.random.default_rng(7)
    isl = rng.integers(500, 3000, 3600)
    if share is not None:
        more["cached_tokens"] = np.floor(share * isl).astype(int)
    return make.request_file(folder, np.arange(3600.0), isl=isl, osl=20, name=f"log{share}", **more)


def known(stored: StoredTrace, caching: bool = True, **changes: object):
    stated = {"serving": [{"prefix_caching": caching}], "horizon": HORIZON} | changes
    scenario = make.scenario(**stated)
    hardware, traffic, window = make.parts(scenario, stored)
    return (
        scenario,
        hardware,
        traffic_with_known_lengths(traffic, known_lengths(traffic, window, scenario.seed)),
    )


def capacity_of(stored: StoredTrace, caching: bool = True, **changes: object) -> float:
    scenario, hardware, traffic = known(stored, caching, **changes)
    sizes = size(hardware, traffic.lengths, scenario.seed, silent, shared=traffic.shared)
    return float(sizes.pool_tps[0, 0, 0])


def test_sizes_rise_with_the_share_and_only_where_caches_are_on(tmp_path: Path) -> None:
    plain = capacity_of(log(tmp_path, None))
    none, half, most = (capacity_of(log(tmp_path, share)) for share in (0.0, 0.5, 0.9))
    assert none == plain
    assert plain <= half <= most
    assert most > 1.3 * plain
    assert capacity_of(log(tmp_path, 0.9), caching=False) == plain


def test_a_stated_share_replaces_that_of_the_file(tmp_path: Path) -> None:
    stored = log(tmp_path, 0.9)
    sources = [make.source(cached_share=0.5)]
    _, _, traffic = known(stored, traffic__sources=sources)
    isl = traffic.measured.input_tokens
    assert isinstance(traffic.measured.blocks, CachedTokens)
    assert traffic.measured.blocks.tokens.tolist() == np.floor(0.5 * isl).tolist()
    _, _, traffic = known(stored, traffic__sources=[make.source(cached_share=0)])
    assert traffic.measured.blocks is None


def test_scaled_requests_keep_what_is_cached(tmp_path: Path) -> None:
    _, _, traffic = known(log(tmp_path, 0.5), traffic__sources=[make.source(scale=2.5)])
    tokens, isl = traffic.measured.blocks.tokens, traffic.measured.input_tokens
    assert len(tokens) > 8000
    assert tokens.tolist() == np.floor(0.5 * isl).tolist()


def test_counts_per_bin_draw_requests_with_their_share(tmp_path: Path) -> None:
    n = 120
    tokens = {"input_tokens": 1000.0, "output_tokens": 50.0, "cached_tokens": 700.0}
    stored = make.demand_file(
        tmp_path, {"a": [60.0] * n}, tokens={name: {"a": [60 * each] * n} for name, each in
                                             tokens.items()},
    )  # fmt: skip
    _, _, traffic = known(stored)
    start = traffic.demand.start_s
    drawn = traffic.requests(start, start + 3600.0, 1)
    assert drawn.blocks.tokens.sum() / drawn.input_tokens.sum() == pytest.approx(0.7, abs=0.01)
    shared = traffic.shared[0]
    assert shared.blocks.tokens.sum() / shared.isl.sum() == pytest.approx(0.7, abs=0.01)


def test_requests_ahead_have_cached_tokens(tmp_path: Path) -> None:
    stored = log(tmp_path, 0.5)
    scenario = make.scenario(serving=[{"prefix_caching": True}], horizon=HORIZON | {"start": "end"})
    _, traffic, window = make.parts(scenario, stored)
    traffic = traffic_with_known_lengths(traffic, known_lengths(traffic, window, scenario.seed))
    ahead, _ = requests_ahead(traffic, window, "last-value", 4)
    assert ahead.blocks.tokens.tolist() == np.floor(0.5 * ahead.input_tokens).tolist()


def test_requests_ahead_keep_blocks_where_caches_are_on(tmp_path: Path) -> None:
    """Sizes count on the blocks, so a replay ahead must have them too."""
    names = [f"chat-{i % 300}" for i in range(3600)]
    stored = make.request_file(
        tmp_path, np.arange(3600.0), isl=500 + np.arange(3600) // 3, osl=20, session_id=names
    )
    for caching in (True, False):
        scenario = make.scenario(
            serving=[{"prefix_caching": caching}], horizon=HORIZON | {"start": "end"}
        )
        _, traffic, window = make.parts(scenario, stored)
        traffic = traffic_with_known_lengths(traffic, known_lengths(traffic, window, scenario.seed))
        ahead, _ = requests_ahead(traffic, window, "last-value", 4)
        assert isinstance(ahead.blocks, PrefixBlocks) == caching
        if caching:
            _, counts = np.unique(ahead.blocks.ids, return_counts=True)
            assert (counts > 1).mean() > 0.5


def test_a_larger_share_needs_no_more_prefill(tmp_path: Path) -> None:
    profile = {"gpu": "G", "model": "m", "alpha_ms": 6, "beta_ms": 0.6, "gamma_ms": 2,
               "delta_ms": 0.1}  # fmt: skip
    roles = [{**profile, "role": "prefill"},
             {**profile, "role": "decode", "alpha_ms": 40, "beta_ms": 1}]  # fmt: skip
    serving = [{"prefix_caching": True, "kv_transfer": {"gb_s": 100}}]
    best = []
    for share in (None, 0.8):
        scenario, hardware, traffic = known(log(tmp_path, share), profiles=roles, serving=serving)
        lengths, shared = traffic.lengths[0], traffic.shared[0]
        service, _ = strictest_split(hardware, 0, *pairs_of(hardware, 0), lengths, 6, shared)
        best.append(
            judge_ratios(service, hardware.routing, 6, scenario.seed, no_report).best.ratio.prefill
        )
    assert best[1] < best[0]
