"""bin/manage plan --verify, and the best P/D ratio on a plan of prefill and decode pools."""

from pathlib import Path

import pytest
from django.urls import reverse

from planner.models import Run, User
from planner.outputs.reports import policy_report
from planner.selectors.runs import stored_result
from tests.planner.management.calling import answer, command
from tests.planner.web.pages import signed_in, text_of

pytestmark = pytest.mark.django_db
EXAMPLE = Path(__file__).parents[3] / "docs/examples/prefill-decode.yml"


def test_a_plan_is_replayed_and_says_whether_it_holds(planner: User, folder: Path) -> None:
    result = answer("plan", folder / "plan.yml", "--verify")
    run = Run.objects.get(pk=result["run"])
    policy = stored_result(run).recommended_policy
    report = policy_report(run, policy)  # as proposals and active plans show it
    assert policy and report is not None and report.facts
    verification = result["verification"]
    assert verification["outcome"] in ("agreed", "nearest", "gave up", "no plan")
    assert verification["corrected_on"] and [row["tier"] for row in verification["judged"]] == [
        "chat"
    ]
    assert verification["rounds"][0]["round"] == 1 and verification["rounds"][0]["sizes"] == {
        "m": 1.0
    }
    assert "verification" not in answer("plan", folder / "plan.yml")
    run = Run.objects.filter(kind="plan").order_by("pk").first()
    assert run is not None and run.options["verify"] is True
    text = text_of(signed_in(planner).get(reverse("web:run", args=[run.pk])))
    assert "Verified by simulation" in text and verification["sentence"] in text
    _, printed, _ = command("plan", folder / "plan.yml", "--verify")
    assert verification["sentence"] in printed


def test_a_plan_of_prefill_and_decode_pools_states_the_best_ratio(planner: User) -> None:
    result = answer("plan", EXAMPLE)
    (row,) = result["pd_ratios"]
    assert row["prefill"] + row["decode"] == row["instances"]
    assert row["max_tps"] > 0
    run = Run.objects.get(kind="plan")
    text = text_of(signed_in(planner).get(reverse("web:run", args=[run.pk])))
    assert f"{row['prefill']}P:{row['decode']}D" in text
