"""What an uploaded file does to estimates, and that removing it undoes that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from planner.models import Calibration, User
from planner.selectors.evidence import evidence_of
from planner.services.calibrations import CalibrationOptions, calibration_delete, calibration_path
from planner.services.estimates import estimate_one

pytestmark = pytest.mark.django_db

HEAD = "model,gpu,tp,isl,osl,concurrency,ttft_ms,tbt_ms,completed,failed\n"
ASKED = {"model": "llama-3.1-8b", "gpu": "L40S", "isl": 1024, "osl": 256, "concurrency": 8,
         "engine": "vllm", "engine_version": "0.9.0"}  # fmt: skip


def upload(folder: Path, *rows: str, name: str = "mine.csv") -> Calibration:
    path = folder / name
    path.write_text(HEAD + "".join(f"{row}\n" for row in rows))
    options = CalibrationOptions(engine="vllm", engine_version="0.9.0")
    return calibration_path(user=None, path=path, options=options)


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
    assert (again.used, again.changed) == (0, 0)
    assert all(use.reason for use in again.rows)
    assert figures() == once


def test_the_page_and_the_api_show_them(tmp_path: Path, client: Client, planner: User) -> None:
    kept = upload(tmp_path, row(1, 30), row(8, 40), row(64, 60, 600, 400))
    client.force_login(planner)
    page = client.get(reverse("web:calibration", args=[kept.pk])).content.decode()
    assert 'id="rows-in-use"' in page and 'id="effects"' in page
    answer = client.get(reverse("api:calibration", args=[kept.pk])).json()["evidence"]
    assert [use["weight"] for use in answer["rows"]] == [1.0, 1.0, 0.0]
    assert answer["changed"] >= len(answer["effects"]) > 0


def test_a_row_without_a_load_has_a_reason(tmp_path: Path) -> None:
    kept = upload(tmp_path, "llama-3.1-8b,L40S,1,1024,256,,600,30,,", row(8, 40))
    first, second = evidence_of(kept).rows
    assert (first.weight, second.weight) == (0.0, 1.0)
    assert "concurrency" in first.reason
