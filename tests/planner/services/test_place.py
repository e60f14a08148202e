"""bin/manage place, its page and its REST view: the same run on all three ways in."""

from pathlib import Path
from typing import Any

import pytest
from django.urls import reverse

from planner.domain.planning.inputs import PlanInput
from planner.errors import Infeasible
from planner.inputs.scenario.schema import Objective
from planner.models import Run, User
from planner.outputs.reports import run_report
from tests.planner.management.calling import SCENARIO, answer, command, problem
from tests.planner.reports import rows_of, tables_of
from tests.planner.web.pages import signed_in, text_of

pytestmark = pytest.mark.django_db

KEYS = {"units", "unplaced_units", "affinity_honoured", "split_units", "bandwidth_lost", "points"}
TODAY = "fleet: {today: [{model: m, region: east, gpu: G, replicas: 9}], "


@pytest.fixture
def path(folder: Path) -> Path:
    placed = folder / "placed.yml"
    assert "fleet: {" in SCENARIO
    text = SCENARIO.replace("fleet: {", "serving: [{kv_transfer: {gb_s: 5}}]\n" + TODAY)
    placed.write_text(text)
    return placed


def test_on_the_command_line(path: Path) -> None:
    result = answer("place", path, "--ratio", "1:2")
    assert result["methods"].keys() == {"blind", "algorithm4", "exact"}
    assert all(method.keys() >= KEYS for method in result["methods"].values())
    assert result["counts_from"] == "fleet.today, mixed pools as 1 prefill to 2 decode"
    assert result["provenance"][0]["kind"] == "assumed"
    _, out, _ = command("place", path, "--method", "exact", "--grow", 0)
    assert out.startswith("9 ")  # replicas placed
    assert "Blind" not in out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--ratio", "2"), "--ratio 2: give P:D, such as 1:2, both at least 1."),
        (("--ratio", "0:1"), "both at least 1"),
        (("--grow", "-1"), "--grow -1: give a number from 0 to 100."),
        (("--time-limit", "0"), "--time-limit 0: give a number above 0, up to 3,600."),
    ],
)
def test_bad_input_is_a_sentence(path: Path, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in problem("place", path, *words)


def test_the_time_limit_is_not_that_of_the_plan_before_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned: list[PlanInput] = []

    def plan_window(inputs: PlanInput, *args: Any, **more: Any) -> None:
        planned.append(inputs)
        raise Infeasible("far enough")

    monkeypatch.setattr("planner.domain.kinds.place.size_over_time", lambda *args: None)
    monkeypatch.setattr("planner.domain.kinds.place.plan_window", plan_window)
    code, _, err = command("place", path, "--counts", "peak", "--time-limit", "1.5")
    assert (code, err.strip()) == (3, "far enough")
    assert planned[0].settings.objective.time_limit_s == Objective().time_limit_s


@pytest.fixture
def run(planner: User, path: Path) -> Run:
    run = Run.objects.get(pk=answer("place", path, "--ratio", "1:2")["run"])
    Run.objects.filter(pk=run.pk).update(owner=planner)
    return run


def page(planner: User, run: Run, **params: str) -> Any:
    return signed_in(planner).get(reverse("web:run", args=[run.pk]), params)


def test_the_page_says_what_the_document_says(planner: User, run: Run) -> None:
    text = text_of(page(planner, run))
    assert run.result["headline"] in text
    assert "S1 0" in text
    report = run_report(run)
    (placements,), (requests,) = tables_of(report, "Placements"), tables_of(report, "Requests")
    methods = {method["label"]: method for method in run.result["methods"].values()}
    for row in rows_of(placements):
        method = methods[str(row["Method"])]
        assert (row["Units"], row["Points"]) == (method["units"], method["points"])
        assert row["KV bandwidth lost"] == method["bandwidth_lost"]
    for row in rows_of(requests):
        simulated = methods[str(row["Method"])]["simulated"]
        assert row["E2E p95"] == simulated["e2e_ms"]["p95"]
    assert "new since the start" not in text
    grown = text_of(page(planner, run, method="algorithm4", state="grown"))
    assert "new since the start" in grown
    # A choice that is not there falls back to the first.
    assert "S1 0" in text_of(page(planner, run, method="x", state="y", region="z"))


def test_the_tree_draws_every_instance(planner: User, run: Run) -> None:
    html = page(planner, run, method="exact").content.decode()
    drawn = html.split('<section class="place-s2">', 1)[1].count('<text class="place-letter"')
    assert drawn == sum(role["instances"] for role in run.result["services"][0]["roles"]) == 9
