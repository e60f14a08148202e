"""What is too much to replay is replayed as one cell of the fleet, and planned as a whole."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.domain.outcome import Inputs
from planner.domain.planning.planning import plan_window
from planner.domain.preparation import study_of
from planner.domain.progress import silent
from planner.domain.replay import cells
from planner.domain.replay.cells import cells_of
from planner.domain.replay.replay import run_policy
from planner.domain.results.basis import frame_of
from planner.policies.choice import policy_of
from tests.planner.domain import builders as make

LENGTHS = {"input_tokens": {"mean": 800}, "output_tokens": {"mean": 40}}
PER_MIN = 18_000  # 300 a second: 20 instances


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cells")


def test_the_plan_is_of_all_and_the_replay_of_one_cell_that_stands_for_all(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = make.demand_file(folder, {"m": [PER_MIN] * 60})

    def of(most: int) -> tuple[object, ...]:
        scenario = make.scenario(
            traffic={"sources": [make.source(**LENGTHS)], "max_replayed": most},
            horizon={"duration_s": 600, "period_s": 300},
            regions=[{
                "name": "east", "capacity": {"G": 200}, "usd_per_gpu_hour": {"G": 2},
                "carbon_g_per_kwh": 400,
            }],
        )  # fmt: skip
        study = study_of(Inputs(scenario, {"t": stored}), silent)
        plan = plan_window(study.plan_input, silent).plan
        run = run_policy(study, policy_of("flat-peak"), seed=0, progress=silent)
        return study, plan, run

    (all_of_it, plan_of_all, all_run), (cut, plan_of_cut, cut_run) = of(50_000_000), of(100_000)
    arriving = 10 * PER_MIN
    assert all_of_it.cells == 1 and len(all_of_it.trace) == arriving
    assert cut.cells == 2 and len(cut.trace) == pytest.approx(arriving / 2, rel=0.02)
    np.testing.assert_array_equal(plan_of_cut.target, plan_of_all.target)
    assert cut_run.summary.arrived == pytest.approx(arriving, rel=0.02)
    (had,), (held,) = ([pool.initial for pool in run.fleet.pools] for run in (all_run, cut_run))
    assert held == -(-had // 2) * 2 and cut_run.summary.gpu_hours == pytest.approx(
        all_run.summary.gpu_hours * held / had, rel=0.02
    )
    frame = frame_of(cut)
    assert frame.requests == len(cut.trace) * 2 and frame_of(all_of_it).replayed.sentence == ""
    assert frame.replayed.sentence.startswith(
        f"Planned for all of about {frame.requests:,} requests"
    )
    assert "one of 2 equal cells" in frame.replayed.sentence
    monkeypatch.setattr(cells, "MAX_DRAWN", 100_000)  # drawn requests take several times as much
    assert cells_of(all_of_it) == 2
    measured = replace(all_of_it.traffic, binned=(), measured=all_of_it.trace)
    assert measured.expected_requests(all_of_it.window.start_s, all_of_it.window.end_s) == arriving
    assert cells_of(replace(all_of_it, traffic=measured)) == 1


def test_cells_keep_pools_to_speak_of(folder: Path) -> None:
    """However few requests may be replayed: a cell of one instance would tell of rounding."""
    stored = make.demand_file(folder, {"m": [PER_MIN] * 60}, name="few")
    scenario = make.scenario(
        traffic={"sources": [make.source(**LENGTHS)], "max_replayed": 1000},
        horizon={"duration_s": 600, "period_s": 300},
        regions=[{
            "name": "east", "capacity": {"G": 200}, "usd_per_gpu_hour": {"G": 2},
            "carbon_g_per_kwh": 400,
        }],
    )  # fmt: skip
    study = study_of(Inputs(scenario, {"t": stored}), silent)
    assert study.counts_by_pool(study.peak).sum() // study.cells >= 8


def test_a_small_dear_pool_beside_a_large_one_does_not_fill_the_fleet(folder: Path) -> None:
    """A cell has at least one replica of each pool, which many cells would pay for."""
    stored = make.demand_file(folder, {"m": [4 * PER_MIN] * 60}, name="uneven")
    prices = {"east": 2, "west": 60}
    regions = [
        {"name": name, "capacity": {"G": 800}, "usd_per_gpu_hour": {"G": usd}}
        | {"carbon_g_per_kwh": 400}
        for name, usd in prices.items()
    ]
    scenario = make.scenario(
        traffic={
            "sources": [make.source(**LENGTHS, regions={"east": 0.99, "west": 0.01})],
            "max_replayed": 1000,
        },
        horizon={"duration_s": 600, "period_s": 300},
        regions=regions,
    )
    study = study_of(Inputs(scenario, {"t": stored}), silent)
    peak = study.counts_by_pool(study.peak)
    rounded_up = -(-peak // study.cells) * study.cells
    assert peak.min() < 3 < peak.max() / 20
    assert rounded_up @ study.replica_usd <= 1.2 * peak @ study.replica_usd
