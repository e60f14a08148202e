"""What an uploaded file does to estimates, and that removing it undoes that."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.errors import IngestError
from planner.models import Calibration, User
from planner.selectors.evidence import evidence_of
from planner.selectors.measured_corrections import deployment_rows
from planner.services.calibrations import CalibrationOptions, calibration_delete, calibration_path
from tests.planner.estimates import estimate_one

pytestmark = pytest.mark.django_db

HEAD = "model,gpu,tp,isl,osl,concurrency,ttft_ms,tbt_ms,completed,failed\n"
ASKED = {"model": "llama-3.1-8b", "gpu": "L40S", "isl": 1024, "osl": 256, "concurrency": 8,
         "engine": "vllm", "engine_version": "0.9.0"}  # fmt: skip


def upload(
    folder: Path, *rows: str, name: str = "mine.csv", statistic: str | None = "mean"
) -> Calibration:
    path = folder / name
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    options = CalibrationOptions(engine="vllm", engine_version="0.9.0", ttft_statistic=statistic)
    return calibration_path(path=path, options=options)


def row(concurrency: int, tbt_ms: float, done: int = 1000, failed: int = 0) -> str:
    return f"llama-3.1-8b,L40S,1,1024,256,{concurrency},600,{tbt_ms},{done},{failed}"


def figures() -> dict[str, Any]:
    answer = estimate_one(ASKED)
    return {name: answer[name] for name in ("ttft_ms", "tbt_ms", "expected_error")}


def test_rows_in_use_and_effects_are_listed_and_removal_undoes_them(
    tmp_path: Path, admin: User
) -> None:
    before = figures()
    kept = upload(tmp_path, row(1, 30), row(8, 40), row(32, 50), row(64, 60, 600, 400))
    evidence = evidence_of(kept)
    assert [use.weight for use in evidence.rows] == [1.0, 1.0, 1.0, 0.0]
    assert evidence.rows[3].reason
    assert 0 < evidence.changed <= evidence.compared
    measured = next(e for e in evidence.effects if (e.model, e.gpu, e.concurrency) ==
                    ("llama-3.1-8b", "L40S", 8.0))  # fmt: skip
    assert figures()["tbt_ms"] == pytest.approx(measured.tbt_factor * before["tbt_ms"])
    calibration_delete(calibration=kept, user=admin)
    assert figures() == before


def test_the_same_file_again_changes_nothing(tmp_path: Path) -> None:
    rows = [row(1, 30), row(8, 40), row(32, 50)]
    upload(tmp_path, *rows)
    once = figures()
    again = evidence_of(upload(tmp_path, *rows))
    assert (again.used_rows, again.changed) == (0, 0)
    assert all(use.reason for use in again.rows)
    assert figures() == once


def test_a_row_without_a_load_has_a_reason(tmp_path: Path) -> None:
    kept = upload(tmp_path, "llama-3.1-8b,L40S,1,1024,256,,600,30,,", row(8, 40))
    first, second = evidence_of(kept).rows
    assert (first.weight, second.weight) == (0.0, 1.0)
    assert "concurrency" in first.reason


def test_a_row_with_a_defect_does_not_help_another_to_narrow(tmp_path: Path) -> None:
    upload(tmp_path, row(8, 40))
    one = figures()["expected_error"]
    upload(tmp_path, row(10, 41, done=10), name="few.csv")
    two = figures()["expected_error"]
    assert two["tbt"] >= one["tbt"] - 1e-9 and two["ttft"] >= one["ttft"] - 1e-9


def log_of_requests(count: int = 400, seed: int = 1) -> tuple[list[str], float]:
    """Return rows of a log in steady traffic, and the mean number in flight."""
    rng = np.random.default_rng(seed)
    start = np.sort(rng.uniform(0, 200, count))
    ttft, tpot = rng.normal(0.2, 0.01, count), rng.normal(0.02, 0.001, count)
    end = start + ttft + 199 * tpot
    lines = [
        f"2025-06-02T10:{int(s // 60):02d}:{s % 60:06.3f}Z,1024,200,{1e3 * t:.2f},{1e3 * p:.3f}"
        for s, t, p in zip(start, ttft, tpot, strict=True)
    ]
    return lines, float((end - start).sum() / (end.max() - start.min()))


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_a_log_with_ttft_and_tpot_of_each_request_calibrates(tmp_path: Path, form: str) -> None:
    lines, in_flight = log_of_requests()
    names = "timestamp,prompt_tokens,completion_tokens,ttft_ms,tpot_ms"
    lines[7] = lines[7].rsplit(",", 2)[0] + ",,"  # this one failed
    path = tmp_path / f"requests.{form}"
    if form == "csv":
        path.write_text("\n".join([names, *lines]))
    else:
        rows = (zip(names.split(","), line.split(","), strict=True) for line in lines)
        path.write_text("\n".join(json.dumps(dict(each)) for each in rows))
    options = CalibrationOptions(model="llama-3.1-8b", gpu="L40S", tp=1, engine="vllm")
    evidence = evidence_of(calibration_path(path=path, options=options))
    (use,) = evidence.rows
    assert 0 < use.weight < 1 and use.reason  # its engine version is assumed
    effect = evidence.effects[0]
    assert (effect.model, effect.gpu, effect.isl) == ("llama-3.1-8b", "L40S", 1024.0)
    assert effect.concurrency == pytest.approx(in_flight, rel=0.01)
    stated = {fact.name: fact.values for fact in evidence.stated}
    assert (stated["ttft_statistic"], stated["loop"]) == ("median", "open")
    assert evidence.missing == ("engine_version", "replicas")


def test_the_statistic_and_the_loop_come_from_the_file_or_are_asked_for(tmp_path: Path) -> None:
    run = {"completed": 500, "total_output_tokens": 50_000, "total_input_tokens": 500_000,
           "model_id": "llama-3.1-8b", "request_throughput": 4.0, "mean_tpot_ms": 20.0}  # fmt: skip
    found = []
    for more in (
        {"median_ttft_ms": 90.0, "mean_ttft_ms": 95.0, "max_concurrency": 8},
        {"mean_ttft_ms": 95.0},
    ):
        path = tmp_path / "run.json"
        path.write_text(json.dumps(run | more))
        kept = calibration_path(path=path, options=CalibrationOptions(gpu="L40S", tp=1))
        stated = {fact.name: fact.values for fact in evidence_of(kept).stated}
        found.append((stated["ttft_statistic"], stated["loop"]))
    assert found == [("median", "closed"), ("mean", "open")]
    path.write_text(json.dumps(run | {"mean_ttft_ms": 95.0, "backend": "sglang",
                                      "engine_version": "0.5.1"}))  # fmt: skip
    kept = calibration_path(path=path, options=CalibrationOptions(gpu="L40S", tp=1))
    (only,) = deployment_rows(kept)
    assert (only["engine"], only["engine_version"]) == ("sglang", "0.5.1")
    kept = upload(tmp_path, row(8, 40), statistic=None)
    assert evidence_of(kept).missing == ("ttft_statistic", "replicas")
    path = tmp_path / "mine.csv"
    options = CalibrationOptions(
        engine="vllm", engine_version="0.9", ttft_statistic="median", replicas=4
    )
    kept = calibration_path(path=path, options=options)
    assert not evidence_of(kept).missing
    (only,) = deployment_rows(kept)
    assert (only["ttft_statistic"], only["concurrency"]) == ("median", 2.0)
    path.write_text(
        HEAD.replace(",failed", ",replicas") + "llama-3.1-8b,L40S,1,1024,256,8,60,30,99,2"
    )
    (stated,) = deployment_rows(calibration_path(path=path, options=options))
    assert stated["concurrency"] == 4.0  # the file's replicas come first


RUN = {
    "model_id": "llama-3.1-8b", "tp": 1, "gpu": "L40S", "completed": 500, "max_concurrency": 8,
    "total_input_tokens": 500_000, "total_output_tokens": 50_000, "request_throughput": 4.0,
    "mean_ttft_ms": 95.0, "mean_tpot_ms": 20.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"gpu": None}, {"gpu": "L40S"}),
        ({"model_id": None}, {"model": "llama-3.1-8b"}),
        ({"tp": None}, {"tp": 1}),
        ({"base_url": "http://router:8000"}, {"replicas": 2}),
        ({"max_concurrency": None, "request_throughput": None}, {"concurrency": 8}),
    ],
)
def test_a_fact_that_no_default_can_replace_is_asked_for(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any]
) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({k: v for k, v in (RUN | changes).items() if v is not None}))
    with pytest.raises(IngestError) as problem:
        calibration_path(path=path)
    assert all(f"{name} (" in str(problem.value) for name in options)
    assert not Calibration.objects.exists()
    kept = calibration_path(path=path, options=CalibrationOptions(**options))
    assert evidence_of(kept).used_rows == 1
    (only,) = deployment_rows(kept)
    assert only["concurrency"] == (4 if "replicas" in options else 8)
