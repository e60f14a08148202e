"""What prompts share, as far as the first decision knows, enters sizes where caches are on."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

from planner.domain.pd.ratio_search import judge_ratios
from planner.domain.pd.service_pools import pairs_of, strictest_split
from planner.domain.progress import silent
from planner.domain.sizing.sizing import size
from planner.domain.traffic.known_lengths import MIN_REQUESTS, known_lengths
from planner.domain.traffic.sources import StoredTrace
from simulation.sizing.pd_simulation import no_report
from tests.planner.domain import builders as make


def turns(folder: Path, arrival_s: npt.ArrayLike = range(3600)) -> StoredTrace:
    """Conversations of ten turns that share all blocks but the last."""
    arrival_ms = 1000 * np.asarray(arrival_s)
    n = len(arrival_ms)
    start = np.arange(n) // 10 * 10
    rows = pl.DataFrame(
        {
            "timestamp": arrival_ms,
            "input_length": np.full(n, 4 * 512),
            "output_length": np.full(n, 20),
            "hash_ids": [[i, i + n, i + 2 * n, 5 * n + j] for j, i in enumerate(start.tolist())],
        }
    )
    path = folder / "turns.jsonl"
    rows.write_ndjson(path)
    return make.ingested(path, "requests", folder / "turns.store")


def test_sizes_rest_on_the_prompts_before_the_first_decision(tmp_path: Path) -> None:
    stored, sizes = turns(tmp_path), {}
    for caching in (True, False):
        scenario = make.scenario(
            serving=[{"prefix_caching": caching}],
            horizon={"period_s": 600, "lead_s": 0, "duration_s": 600},
        )
        hardware, traffic, window = make.parts(scenario, stored)
        known = known_lengths(traffic, window, scenario.seed)
        shared = known.shared[0][0]
        assert shared is not None
        before = float(window.origins_s[0]) - traffic.measured.start_s
        assert len(shared.isl) == int((traffic.measured.arrival_s < before).sum())
        sizes[caching] = size(
            hardware, known.samples[0], scenario.seed, silent, shared=known.shared[0]
        ).pool_tps[0, 0]
    # Turns of a conversation meet at one of few instances, and hardly ever at one of 32, for this
    # router does not look where a prompt's beginning is kept.
    assert sizes[True][0] > 1.3 * sizes[False][0]
    assert (sizes[True] > 0.98 * sizes[False]).all()


def test_few_earlier_prompts_are_not_filled_up_with_those_of_the_window(tmp_path: Path) -> None:
    stored = turns(tmp_path, np.concatenate([np.arange(0, 3000, 60), np.arange(3000, 3600)]))
    scenario = make.scenario(horizon={"period_s": 600, "lead_s": 0, "duration_s": 600})
    _, traffic, window = make.parts(scenario, stored)
    known = known_lengths(traffic, window, scenario.seed)
    shared = known.shared[0][0]
    assert shared is not None and not known.notes
    earlier = traffic.measured.before(float(window.origins_s[0]))
    assert len(shared.isl) == earlier < MIN_REQUESTS


def test_the_ratio_leaves_as_many_prefill_instances_as_caches_leave_work_for(
    tmp_path: Path,
) -> None:
    """Plans, pressure tests and ``pd-ratio`` ask the same function: what the trace shares lets
    fewer prefill instances do, in both pools by themselves and together."""
    stored, judged = turns(tmp_path), {}
    profile = {"gpu": "G", "model": "m", "alpha_ms": 6, "beta_ms": 0.6, "gamma_ms": 2,
               "delta_ms": 0.1}  # fmt: skip
    roles = [{**profile, "role": "prefill"},
             {**profile, "role": "decode", "alpha_ms": 40, "beta_ms": 1}]  # fmt: skip
    for caching in (True, False):
        scenario = make.scenario(
            profiles=roles,
            serving=[{"prefix_caching": caching, "kv_transfer": {"gb_s": 100}}],
            fleet={"routing": {"instance": "prefix-aware"}},
            horizon={"period_s": 600, "lead_s": 0, "duration_s": 600},
        )
        hardware, traffic, window = make.parts(scenario, stored)
        known = known_lengths(traffic, window, scenario.seed)
        (columns,) = pairs_of(hardware, 0)
        lengths, shared = known.samples[0][0], known.shared[0][0]
        service, _ = strictest_split(hardware, 0, columns, lengths, 6, shared)
        judged[caching] = judge_ratios(service, hardware.routing, 6, scenario.seed, no_report)
    with_caches, without = judged[True], judged[False]
    assert with_caches.closed[2].max_rps == pytest.approx(without.closed[2].max_rps, rel=0.05)
    assert with_caches.best.ratio.max_rps > 1.2 * without.best.ratio.max_rps
    assert with_caches.best.ratio.prefill < without.best.ratio.prefill
    assert all(
        pool.max_rps >= 0.98 * other.max_rps
        for pool, other in zip(with_caches.pools, without.pools, strict=True)
    )
