"""The page of a provisioning run without scripts, and its REST views: the same figures."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.urls import reverse
from rest_framework.test import APIClient

from planner.domain.provisioning import windows
from planner.domain.provisioning.figures import LEVEL_NAMES
from planner.models import Run, Scenario, User
from planner.outputs.reports import run_report
from planner.selectors.runs import run_tables
from planner.services import provisioning
from planner.services.calibrations import calibration_path
from tests.planner.reports import rows_of, tables_of
from tests.planner.web.pages import signed_in, text_of
from tests.planner.web.provision_study import few_points, provisioned, provisioned_once


@pytest.fixture
def run(planner: User, tmp_path: Path) -> Iterator[Run]:
    with few_points():
        yield provisioned_once(planner, tmp_path)


def page(planner: User, run: Run, **params: str) -> str:
    return text_of(signed_in(planner).get(reverse("web:run", args=[run.pk]), params))


def test_the_page_says_what_the_document_says(planner: User, run: Run) -> None:
    text = page(planner, run)
    assert run.result["headline"] in text
    report = run_report(run)
    (levels,), (pools,) = tables_of(report, "Levels"), tables_of(report, "Pools")
    assert {row["Level"]: row["GPUs"] for row in rows_of(levels)} == {
        LEVEL_NAMES[name]: level["gpus"] for name, level in run.result["levels"].items()
    }
    chosen = [pool for pool in run.result["pools"] if pool["chosen"]]
    assert [row["Phase"] for row in rows_of(pools)] == [pool["phase"] for pool in chosen]
    assert [row["Load"] for row in rows_of(pools)] == [pool["requests_s"] for pool in chosen]
    for level in ("operator", "module", "model"):
        assert "bottleneck" in page(planner, run, phase="prefill", level=level) or level == "model"
    (together,) = tables_of(report, "Aggregated")
    (service,) = run.result["sharing"]["services"]
    assert [row["GPUs"] for row in rows_of(together)] == [
        way["gpus"] for way in service["ways"].values() if way["confirmed"]
    ]
    assert "Decode of llama-3.1-8b" in page(planner, run, phase="decode")
    assert "Modules and their replicas" in page(planner, run, phase="prefill", level="module")
    (methods,) = tables_of(report, "Source")
    planned = [method for pool in chosen for method in pool["methods"]]
    assert [row["Method"] for row in rows_of(methods)] == [method["method"] for method in planned]
    # A choice that is not there falls back to the first.
    assert "Prefill of llama-3.1-8b" in page(planner, run, pool="nobody", phase="x", level="y")


def test_the_api_has_what_the_page_draws(api: APIClient, planner: User, run: Run) -> None:
    base = f"/api/v1/runs/{run.pk}"
    sensitivity = api.get(f"{base}/sensitivity/", {"phase": "decode"}).json()
    assert "attention_decode" in sensitivity["operators"]
    assert len(sensitivity["latency_by_share"]) == len(sensitivity["operators"])
    swept = api.get(f"{base}/sweeps/rate/").json()
    assert swept["by"] == "rate"
    assert [row["at"] for row in swept["rows"]] == list(provisioning.RATES)
    low = swept["rows"][0]
    assert low["gpus"] == pytest.approx(1 - low["operator_gpus"] / low["model_gpus"])
    assert api.get(f"{base}/sweeps/colour/").status_code == 404
    assert api.get(f"{base}/sensitivity/", {"phase": "both"}).status_code == 400
    assert api.get(f"{base}/sensitivity/", {"pool": "x / y / z"}).status_code == 404
    assert api.get(f"{base}/results/").json()["levels"] == run.result["levels"]


def test_other_runs_have_none_of_it(api: APIClient, planner: User, run: Run) -> None:
    Run.objects.filter(pk=run.pk).update(kind="plan", result={"kind": "plan"})
    answer = api.get(f"/api/v1/runs/{run.pk}/sensitivity/")
    assert answer.status_code == 409
    assert "did not provision" in answer.json()["detail"]


def test_kernels_that_were_uploaded_are_used_and_named(planner: User, tmp_path: Path) -> None:
    path = tmp_path / "kernels.csv"
    rows = ["op,dtype,m,n,k,latency_us,gpu,source"]
    rows += [f"gemm,bf16,{m},6144,4096,{40 + m / 3},A100-80GB,own" for m in (1, 64, 4096, 65536)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    calibration = calibration_path(path=path, source="our own harness")
    run = provisioned(planner, tmp_path, busy=False, short=True, level="operator")
    assert run.resolved["kernels"] == {"A100-80GB": [calibration.pk]}
    sources = [
        fact["source"]
        for fact in run.result["provenance"]
        if "Seconds of operators" in fact["what"]
    ]
    assert "our own harness" in sources[0]
    pool = provisioning.pool_of_run(run, "", "")
    assert "our own harness" in provisioning.operator_sensitivity(run, pool)["provenance"]["source"]
    assert "measured" in page(planner, run, phase="prefill", level="operator")


def test_courses_window_by_window_are_on_the_page(
    planner: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "WINDOW_S", 60.0)  # and 60 are planned, not 360
    run = provisioned(
        planner, tmp_path, busy=False, short=True, over_time="observed", level="model"
    )
    (course,) = tables_of(run_report(run), "Over time")
    pools = run.result["over_time"]["pools"]
    assert [row["GPU-hours"] for row in rows_of(course)] == [
        level["gpu_hours"] for pool in pools for level in pool["levels"].values()
    ]
    assert "GPUs over time" in page(planner, run, phase="decode")
    assert "courses" in run_tables(run)


def test_a_scenario_is_provisioned_again_with_other_options(planner: User, tmp_path: Path) -> None:
    first = provisioned_once(planner, tmp_path)
    scenario = Scenario.objects.create(name="kept", document=first.document, owner=planner)
    Run.objects.filter(pk=first.pk).update(scenario=scenario)
    html = signed_in(planner).get(reverse("web:run", args=[first.pk])).content.decode()
    assert all(f'name="{option}"' in html for option in ("method", "batch_wait", "images"))
    asked = {"kind": "provision", "batch_wait": "counted", "images": "2", "single_stream": "on"}
    where = reverse("web:scenario-run", args=[scenario.pk])
    signed_in(planner).post(where, asked)
    run = Run.objects.exclude(pk=first.pk).get(kind="provision")
    assert run.options == {"batch_wait": "counted", "images": 2.0, "single_stream": True}
    refused = signed_in(planner).post(where, asked | {"images": "-1"})
    assert Run.objects.filter(kind="provision").count() == 2, refused.content
