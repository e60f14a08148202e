"""Laws of evidence: what the user's measurements may do to estimates and stated errors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from planner.inputs.estimates.deployment_rows import deployment
from planner.inputs.estimates.measured_corrections import (
    FEW_FAILED,
    MANY_FAILED,
    Change,
    MeasuredCorrections,
    changes,
    corrections_from,
    defects,
    measurements,
)
from planner.inputs.ingest.benchmarks import read_benchmarks
from simulation.performance.estimate.estimate import Estimate, estimate_rows
from simulation.performance.estimate.measured_corrections import learn_corrections, traits_of

BASE = {"model": "llama-3.1-8b", "gpu": "L40S", "engine": "vllm", "engine_version": "0.9.0",
        "isl": 1024, "osl": 256, "concurrency": 16}  # fmt: skip
LOADS = (1, 4, 16, 64)
OTHERS = ({}, {"concurrency": 64}, {"isl": 4096}, {"engine_version": "0.6.0"}, {"gpu": "H100-SXM"},
          {"model": "llama-3.1-70b", "gpu": "H100-SXM", "tp": 4})  # fmt: skip


def estimated(row: dict[str, Any]) -> Estimate:
    (answer,) = estimate_rows([deployment(row)], estimate_fit().calibration, efficiencies())
    assert isinstance(answer, Estimate)
    return answer


def measured(factor: float, **changed: Any) -> dict[str, Any]:
    """Return a row with times ``factor`` times the estimate's."""
    row = BASE | changed
    answer = estimated(row)
    return row | {"ttft_ms": 1e3 * factor * answer.ttft_s, "tbt_ms": 1e3 * factor * answer.tbt_s}


def learnt(rows: list[dict[str, Any]], name: str = "mine.csv") -> MeasuredCorrections:
    usable, notes = measurements(rows, name)
    found = corrections_from(usable, notes, estimate_fit())
    assert found is not None
    return found


def change(known: MeasuredCorrections, row: dict[str, Any]) -> Change:
    (found,) = changes(known, [deployment(row)], estimate_fit())
    return found


def prior(row: dict[str, Any]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the errors of TBT and TTFT without measurements."""
    fit, where = estimate_fit(), deployment(row)
    traits = traits_of([where])
    out = []
    for name in ("tbt", "ttft"):
        nothing = learn_corrections(
            fit.alike[name].likeness, traits.take(np.zeros(0, np.int64)), np.zeros(0)
        )
        half, nine = fit.alike[name].stated.of_shift(traits.split, nothing.at(traits))
        out.append((float(half[0]), float(nine[0])))
    return out[0], out[1]


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("factor", [0.7, 1.0, 1.6])
def test_one_row_never_narrows_a_stated_error(factor: float, other: dict[str, Any]) -> None:
    target = BASE | other
    found = change(learnt([measured(factor)]), target)
    tbt, ttft = prior(target)
    assert found.tbt_error[0] >= tbt[0] * (1 - 1e-9)
    assert found.ttft_error[0] >= ttft[0] * (1 - 1e-9)


def test_rows_that_agree_narrow_it() -> None:
    rows = [measured(1.3, concurrency=load) for load in LOADS]
    tbt, _ = prior(BASE)
    assert change(learnt(rows), BASE).tbt_error[0] < tbt[0]


def test_the_error_is_at_least_what_remains_of_the_own_row() -> None:
    rows = [measured(1.0, concurrency=load) for load in (1, 2, 4, 8, 16)] + [measured(1.9)]
    found, answer = change(learnt(rows), BASE), estimated(BASE)
    left = abs(rows[-1]["tbt_ms"] / 1e3 / (found.tbt * answer.tbt_s) - 1.0)
    assert found.tbt_error[0] >= left * (1 - 1e-9)
    assert found.tbt_error[1] >= found.tbt_error[0]


def test_the_same_rows_count_once() -> None:
    rows = [measured(1.4, concurrency=load) for load in LOADS]
    once, twice = learnt(rows), learnt(rows + rows)
    assert change(once, BASE) == change(twice, BASE)
    assert len(twice.rows) == len(rows)
    assert len(twice.notes) == len(once.notes) + len(rows)


def test_a_row_weighs_less_with_its_distance() -> None:
    known = learnt([measured(1.5)])

    def moved(**changed: Any) -> float:
        return abs(float(np.log(change(known, BASE | changed).tbt)))

    assert moved() > moved(concurrency=64) > moved(concurrency=512)
    assert moved() > moved(isl=4096) > moved(isl=16384)
    assert moved() > moved(engine_version="0.6.0")
    assert moved() > moved(gpu="H100-SXM")


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"completed": 900, "failed": 100}, "failed"),
        ({"completed": 600, "failed": 400}, "failed"),
        ({"completed": 8}, "few"),
        ({"completed": 30, "concurrency": 16}, "unsteady"),
        ({"max_num_seqs": 8}, "capped"),
        ({"ttft_ms": 9_000, "e2e_ms": 12_000}, "capped"),
    ],
)
def test_defects_are_named_and_weigh_less(columns: dict[str, Any], name: str) -> None:
    row = BASE | columns
    (found,) = defects(row, float(row["concurrency"]))
    assert (found.name, found.weight < 1.0) == (name, True)
    assert not list(defects(BASE | {"completed": 1000, "failed": 0}, 16.0))


def test_a_defective_row_moves_an_estimate_less_or_not_at_all() -> None:
    sound = [measured(1.0, concurrency=256)]
    moves = []
    for failed in (0, round(1000 * FEW_FAILED) + 30, round(1000 * MANY_FAILED) + 200):
        bad = measured(1.6, isl=2048) | {"completed": 1000 - failed, "failed": failed}
        known = learnt([*sound, bad])
        moves.append(abs(float(np.log(change(known, BASE | {"isl": 2048}).tbt))))
        assert len(known.rows) == len(sound) + (failed < 1000 * MANY_FAILED)
    assert moves[0] > moves[1] >= moves[2]


def test_a_first_token_faster_than_any_prefill_is_suspected() -> None:
    row = measured(1.0)
    row["ttft_ms"] *= 0.2
    (suspect,) = learnt([row]).rows
    assert [defect.name for defect in suspect.defects] == ["prefix"]


def test_a_run_tells_completed_and_failed_requests(tmp_path: Path) -> None:
    run = {"model_id": "m", "completed": 600, "failed": 400, "duration": 60.0,
           "total_input_tokens": 600_000, "total_output_tokens": 60_000, "max_concurrency": 32,
           "request_throughput": 10.0, "output_throughput": 1000.0, "median_ttft_ms": 100.0,
           "median_tpot_ms": 20.0}  # fmt: skip
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run))
    rows = read_benchmarks(path, name="run.json").rows
    assert (rows.completed.tolist(), rows.failed.tolist()) == ([600.0], [400.0])
