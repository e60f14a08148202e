"""Commands that list, keep or export what pages show too."""

import json
from pathlib import Path
from typing import Any

import pytest

from planner.inputs.scenario.document import parse
from planner.models import AuditRecord, Scenario, User
from planner.services.scenarios import scenario_create
from tests.planner.management.calling import answer, command, problem
from tests.planner.plan_runs import planned_run
from tests.planner.samples import DOCUMENT

pytestmark = pytest.mark.django_db


def both(*words: Any) -> dict[str, Any]:
    """Return the answer as JSON; in words the command answers as well."""
    code, printed, _ = command(*words)
    assert code == 0 and printed.strip()
    return answer(*words)


def test_a_price_list_is_kept_and_listed(tmp_path: Path) -> None:
    path = tmp_path / "contract.csv"
    path.write_text("region,gpu,on_demand_usd\nhome,H100,1.5\nhome,A100,1\n")
    assert both("prices")["price_lists"] == []
    (kept,) = both("prices", path, "--name", "ours")["price_lists"]
    assert (kept["name"], kept["prices"]) == ("ours", 2)


@pytest.mark.parametrize("text", ["5", "=5", " =5", "H100=", "H100=dear"])
def test_a_changed_price_needs_a_gpu_and_a_number(text: str) -> None:
    assert text.strip() in problem("whatif", 1, "--price", text)


def test_a_launch_line_becomes_the_fleet_of_a_scenario(tmp_path: Path, planner: User) -> None:
    scenario_create(owner=planner, document=DOCUMENT.replace("east", "us-east-1"))
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve Qwen/Qwen3-32B -tp 4\n")
    (pool,) = both("fleet", path, "--replicas", 2)["pools"]
    assert pool["tp"] == 4
    told = both("fleet", path, "--scenario", "Chat", "--gpu", "H100", "--replicas", 2)
    assert told["scenario"] == "Chat"
    (today,) = parse(Scenario.objects.get().document).fleet.today
    assert (today.model, today.tp, today.replicas) == ("qwen3-32b", 4, 2)


def test_a_question_without_a_trace_is_answered_in_gpus() -> None:
    asked = ("quick-size", "--model", "llama-3.1-8b", "--gpu", "H100-SXM", "--users", 50)
    size = both(*asked)
    assert size["gpus"] == size["replicas"] * size["tp"] >= 1
    assert problem(*asked, "--rps", 1)


def test_a_plan_is_activated_ended_and_restored(planner: User) -> None:
    run = planned_run(planner)
    assert both("in-force")["plans"] == []
    active = both("in-force", run.pk, "--message", "Summer")
    assert active["run"] == run.pk and active["desired"][0]["replicas"] in (2, 5)
    assert both("in-force", "--none")["run"] is None
    *_, first = both("in-force", "--history")["plans"]
    assert (first["why"], first["until"] != "now") == ("Summer", True)
    assert both("in-force", "--again", first["plan"])["run"] == run.pk
    assert problem("in-force", run.pk, "--none")


def test_a_schedule_is_kept_changed_paused_fired_and_listed(planner: User) -> None:
    scenario_create(owner=planner, document=DOCUMENT)
    (made,) = answer("schedule", "add", "nightly", "--scenario", "Chat", "--cron", "0 3 * * *")[
        "schedules"
    ]
    assert (made["scenario"], made["cron"], made["paused"]) == ("Chat", "0 3 * * *", False)
    for action, paused in (("pause", True), ("resume", False)):
        (row,) = both("schedule", action, "nightly")["schedules"]
        assert row["paused"] is paused
    (changed,) = both("schedule", "change", "nightly", "--cron", "0 4 * * 1")["schedules"]
    assert both("schedule", "list")["schedules"] == [changed] and changed["cron"] == "0 4 * * 1"
    # Its scenario names a trace that is not there.
    (fired,) = answer("schedule", "fire", "nightly")["firings"]
    assert fired["state"] == "failed"
    assert answer("schedule", "history", "nightly")["firings"] == [fired]
    assert both("schedule", "outcomes")["outcomes"] == []
    assert problem("schedule", "pause")


def test_the_audit_log_is_written_with_its_own_export(tmp_path: Path, planner: User) -> None:
    for name in ("log.csv", "log.json"):
        path = tmp_path / name
        assert answer("audit", "export", path)["records"] == AuditRecord.objects.count()
        assert "audit.exported" in path.read_text()
    assert isinstance(json.loads(path.read_text()), (dict, list))
    assert problem("audit", "export", tmp_path / "log.txt")
