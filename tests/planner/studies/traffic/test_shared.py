"""What prompts share, as far as the first decision knows, enters sizes where caches are on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl

from planner.studies.progress import silent
from planner.studies.sizing.sizing import size
from planner.studies.traffic.known import known_lengths
from tests.planner.studies import builders as make


def test_sizes_rest_on_the_prompts_before_the_first_decision(tmp_path: Path) -> None:
    """Conversations of ten turns that share all blocks but the last."""
    n = 3600
    start = np.arange(n) // 10 * 10
    rows = pl.DataFrame(
        {
            "timestamp": 1000 * np.arange(n),
            "input_length": np.full(n, 4 * 512),
            "output_length": np.full(n, 20),
            "hash_ids": [[i, i + n, i + 2 * n, 5 * n + j] for j, i in enumerate(start.tolist())],
        }
    )
    path = tmp_path / "turns.jsonl"
    rows.write_ndjson(path)
    stored = make.ingested(path, "requests", tmp_path / "turns.store")
    sizes = {}
    for caching in (True, False):
        scenario = make.scenario(
            serving=[{"prefix_caching": caching}],
            horizon={"period_s": 600, "lead_s": 0, "duration_s": 600},
        )
        hardware, traffic, window = make.parts(scenario, stored)
        known = known_lengths(traffic, window, scenario.seed)
        shared = known.shared[0]
        assert shared is not None
        before = float(window.origins_s[0]) - traffic.measured.start_s
        assert len(shared.isl) == int((traffic.measured.arrival_s < before).sum())
        sizes[caching] = size(
            hardware, known.samples[0], scenario.seed, silent, shared=known.shared
        ).pool_tps[0, 0]
    # Turns of a conversation meet at one of few instances, and hardly ever at one of 32, for this
    # router does not look where a prompt's beginning is kept.
    assert sizes[True][0] > 1.3 * sizes[False][0]
    assert (sizes[True] > 0.98 * sizes[False]).all()
