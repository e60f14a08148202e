"""CoCoServe's policy on a scenario: idle GPUs are borrowed, paid for, and told of."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from planner.domain.progress import silent
from planner.domain.replay.replay import run_policy
from planner.domain.report import Chart
from planner.domain.reports.modules import modules_section
from planner.domain.results.basis import frame_of
from planner.domain.study import PolicyRun, Study
from planner.errors import ScenarioError
from planner.policies.choice import policy_of
from tests.planner.domain import builders as make
from tests.planner.reports import rows_of

SPEED = {"alpha_ms": 12, "beta_ms": 0.3, "gamma_ms": 12, "delta_ms": 0.06}
GPU = {"memory_gb": 40, "idle_w": 60, "prefill_w": 400, "decode_w": 250,
       "bandwidth_gb_s": 2000}  # fmt: skip


def study(folder: Path, gpus: int = 6, **changes: Any) -> Study:
    """LLaMA-13B's layers on GPUs that have little room beside them; two instances run today."""
    region = {"name": "east", "capacity": {"G": gpus, "H": 2}, "usd_per_gpu_hour": {"G": 2, "H": 4},
              "carbon_g_per_kwh": 400, "pue": 1.2}  # fmt: skip
    shape = {"layers": 40, "hidden": 5120, "vocab": 32000, "heads": 40, "kv_heads": 40,
             "head_dim": 128, "intermediate": 13824, "max_context": 4096}  # fmt: skip
    fields: dict[str, Any] = {
        "models": [{"name": "m", "shape": shape}],
        "gpus": [{"name": name, **GPU} for name in ("G", "H")],
        "profiles": [
            {"model": "m", "gpu": "G", **SPEED},
            {"model": "m", "gpu": "H", **{name: x / 2 for name, x in SPEED.items()}},
        ],
        "regions": [region],
        "traffic": {
            "sources": [make.source(input_tokens={"mean": 300}, output_tokens={"mean": 100})]
        },
        "fleet": {"today": [{"model": "m", "region": "east", "gpu": "G", "replicas": 2}]},
        "horizon": {"period_s": 300, "lead_s": 120, "duration_s": 600},
    }
    scenario = make.scenario(**(fields | changes))
    stored = make.demand_file(folder, {"m": [120.0] * 30 + [60.0, 900.0] * 10})
    return make.study(scenario, stored)


def played(toy: Study, **arguments: Any) -> PolicyRun:
    return run_policy(toy, policy_of("modules", **arguments), seed=1, progress=silent)


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study(tmp_path_factory.mktemp("modules"))


@pytest.fixture(scope="module")
def run(lent: Study) -> PolicyRun:
    return played(lent)


def test_borrowed_gpus_are_held_and_paid_for(run: PolicyRun) -> None:
    assert run.modules is not None
    (pool,) = run.modules.figures.pools
    assert pool.instances == 2
    # Modules move under pressure, and copies use the GPUs that are held for them.
    assert pool.operations > 0 and pool.moved_layers + pool.moved_caches > 0
    # Four idle of its own type and two faster ones; within three devices for each instance.
    assert 0 < pool.most_borrowed_gpus <= 6
    hours = 600 / 3600
    held = 2 * hours + pool.mean_borrowed_gpus * hours
    assert run.summary.gpu_hours == pytest.approx(held, rel=0.03)
    kept = [p for p, pool in enumerate(run.fleet.pools) if not pool.lends]
    assert run.series.ready[kept].sum(axis=0) == pytest.approx(2.0)
    assert run.series.ready.sum(axis=0).max() <= 8 + 1e-9


def test_every_request_is_accounted_for_and_nobody_is_served_by_what_is_lent(
    run: PolicyRun,
) -> None:
    figures = run.summary
    assert figures.completed + figures.rejected + figures.unfinished == figures.arrived
    lent = [p for p, pool in enumerate(run.fleet.pools) if pool.lends]
    assert lent and not run.series.output_tokens[lent].any()


def test_what_stood_where_is_told(run: PolicyRun) -> None:
    assert run.modules is not None
    table, (pool,) = run.modules.standings, run.modules.figures.pools
    assert set(table["gpu"]) == {"G", "H"}
    together = table.group_by("time").agg(layers=table["layers"].sum())
    assert together.height > 1
    # Nothing is lost on the way: at every moment each layer and cache is somewhere, once.
    for _, rows in table.group_by("time"):
        for part in ("layers", "projections", "caches"):
            assert rows[part].sum() == 40
    assert run.modules.operations.height == pool.operations
    parts = {part.name: part for part in run.modules.figures.parts["m"]}
    assert parts["decoder layer"].memory_bytes == pytest.approx(605 * 2**20, rel=1e-3)
    assert 0 < pool.unused_memory < 1
    assert pool.speedup > 1


def test_the_report_has_each_pool_with_its_course(lent: Study, run: PolicyRun) -> None:
    assert run.modules is not None
    figures = run.modules.figures
    stored = run.modules.standings.with_columns(policy=pl.lit(figures.policy))
    frame = frame_of(lent)
    (section,) = modules_section([figures], frame, lambda _: stored)
    operations, resources, parts = section.tables
    (row,), (pool,) = rows_of(operations), figures.pools
    assert (row["Operations"], row["Copied, most"]) == (pool.operations, pool.most_copies)
    assert rows_of(resources)[0]["Borrowed GPUs, most"] == pool.most_borrowed_gpus
    assert len(parts.rows) == len(figures.parts["m"])
    (chart,) = (block for block in section.blocks if isinstance(block, Chart))
    (borrowed,) = (series for series in chart.series if series.right)
    assert max(borrowed.y) == stored["borrowed_instances"].max()
    assert borrowed.x[-1] == frame.window.end
    assert not list(modules_section(None, frame, lambda _: stored))


def test_with_neither_copies_nor_moves_it_is_a_flat_fleet(tmp_path: Path) -> None:
    toy = study(tmp_path)
    still = played(toy, copies=False, moves=False)
    flat = run_policy(toy, policy_of("today"), seed=1, progress=silent)
    assert still.summary.gpu_hours == pytest.approx(flat.summary.gpu_hours)
    assert still.summary.ttft_ms.mean == pytest.approx(flat.summary.ttft_ms.mean)
    assert still.modules is not None and still.modules.operations.is_empty()


def test_without_idle_gpus_nothing_is_borrowed(tmp_path: Path) -> None:
    full = played(study(tmp_path, gpus=2), other_gpus=False)
    assert full.modules is not None
    (pool,) = full.modules.figures.pools
    assert (pool.operations, pool.most_borrowed_gpus) == (0, 0)
    assert np.isclose(pool.mean_speed, 1.0)


def test_who_has_no_layers_is_told(tmp_path: Path) -> None:
    models = [{"name": "m", "weight_gb": 16, "kv_bytes_per_token": 131072, "max_context": 8192}]
    with pytest.raises(ScenarioError, match="needs the layers of m"):
        played(study(tmp_path, models=models))
