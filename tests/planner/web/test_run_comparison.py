"""Runs beside each other: the law that a run is no different from itself, and what is marked."""

from typing import Any

import pytest
from django.urls import reverse
from rest_framework.test import APIClient

from planner.errors import NotReady, PlannerError
from planner.models import Run, User
from planner.selectors.run_comparison import compare_runs, runs_to_compare
from planner.selectors.runs import run_table
from planner.storage import row_arrays
from tests.planner.management import calling
from tests.planner.web.pages import json_in, signed_in, text_of
from tests.planner.web.study import DOCUMENT, completed_run


@pytest.fixture
def first(planner: User) -> Run:
    return completed_run(planner)


def other(planner: User, document: str, **figures: Any) -> Run:
    """A second run whose scenario is ``document`` and whose plan's figures are changed."""
    run = completed_run(planner)
    run.document = document
    run.result["policies"]["lt-i"] |= figures
    run.save()
    return run


def marks(runs: list[Run], name: str) -> tuple[str, ...]:
    groups = compare_runs(runs).groups
    return next(row.marks for group in groups for row in group.rows if row.name == name)


def test_a_run_is_no_different_from_itself(first: Run) -> None:
    beside = compare_runs([first, first])
    assert beside.differences == () and beside.same > 50 and beside.notes == ()
    rows = [row for group in beside.groups for row in group.rows]
    assert rows and all(set(row.marks) == {""} for row in rows)
    assert all(change in (None, 0.0) for row in rows for change in row.changes)


def test_settings_that_differ_stand_by_their_address(planner: User, first: Run) -> None:
    text = DOCUMENT.replace("ttft_ms: 1000", "ttft_ms: 2000") + "forecast: {quantile: 0.9}\n"
    beside = compare_runs([first, other(planner, text)])
    assert {row.key: row.values for row in beside.differences} == {
        "tiers[IW-F].ttft_ms": (1000.0, 2000.0),
        "forecast.quantile": (None, 0.9),
    }


def test_settings_are_those_of_the_simulation(planner: User, first: Run) -> None:
    """A run that tunes a policy and adds N+1 equals a run whose scenario states both."""
    tuned, stated = (other(planner, DOCUMENT) for _ in range(2))
    address, spare = "policies[lt-i].load_factor", "objective.spare.instances"
    tuned.result["policies"]["lt-i"]["settings"] = [
        {"what": "load_factor", "where": "", "value": 1.2}
    ]
    tuned.result["recommended"] = {"policy": "lt-i", "assurance": "balanced"}
    tuned.result["assurance"] = {"balanced": {"spare": True}}
    tuned.save()
    values = {row.key: row.values for row in compare_runs([tuned, stated]).differences}
    assert values[spare] == (1, 0)
    assert values[address] == (1.2, 1.0)
    stated.document += "objective: {spare: {instances: 1, by: region}}\n"
    stated.save()
    assert [row.key for row in compare_runs([tuned, stated]).differences] == [address]
    # A run of another kind chooses no settings: the scenarios are compared as they are.
    front = other(planner, stated.document)
    front.kind, front.result = Run.Kind.PARETO, {"kind": "pareto", "headline": "Keep the plan"}
    front.save()
    differences = {row.key for row in compare_runs([tuned, front]).differences}
    assert spare in differences and address not in differences
    page = signed_in(planner).get(reverse("web:runs-compare"), {"run": [tuned.pk, front.pk]})
    (line,) = page.context["main"]
    assert page.context["unlike"] and line.cells[1].text == "Keep the plan"
    offer = signed_in(planner).get(reverse("web:runs-compare"), {"run": front.pk})
    assert offer.context["groups"] == [] and {run.pk for run in offer.context["others"]} >= {
        tuned.pk
    }


def test_less_cost_is_better_only_where_no_tier_is_served_worse(planner: User, first: Run) -> None:
    text = DOCUMENT.replace("3600", "1800")
    assert marks([first, other(planner, text, cost_usd=300.0)], "cost_usd") == ("", "better")
    worse = {"IW-F": 0.9, "IW-N": 0.9}
    run = other(planner, text, cost_usd=300.0, slo_attainment=worse)
    assert marks([first, run], "cost_usd") == ("", "")
    assert marks([run, first], "cost_usd") == ("", "")  # it costs more, and serves better
    assert marks([first, run], "slo_attainment") == ("", "worse")
    # From nothing rejected to some: worse, whatever the percentage.
    none = other(planner, text, rejected=0)
    assert marks([none, first], "rejected") == ("", "worse")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("model: llama-3.1-8b\n", "model: llama-3.1-8b\n      scale: 2\n"), "Other traffic"),
        (("ttft_ms: 1000", "ttft_ms: 3000"), "The limits differ"),
    ],
)
def test_what_cannot_be_compared_is_said_and_never_better(
    planner: User, first: Run, change: tuple[str, str], why: str
) -> None:
    run = other(planner, DOCUMENT.replace(*change), cost_usd=1.0)
    replayed = next(g for g in compare_runs([first, run]).groups if g.title == "As simulated")
    assert replayed.note.startswith(why)
    assert next(row.marks for row in replayed.rows if row.name == "cost_usd") == ("", "")


def test_another_window_is_never_better(planner: User, first: Run) -> None:
    run = other(planner, DOCUMENT, cost_usd=1.0)
    run.result["window"]["end"] = "2024-05-19T06:00:00Z"
    run.save()
    assert all(set(row.marks) == {""} for g in compare_runs([first, run]).groups for row in g.rows)


def test_only_completed_runs_and_not_too_few(planner: User, first: Run) -> None:
    waiting = Run.objects.create(kind=Run.Kind.COMPARE, owner=planner, name="w")
    with pytest.raises(NotReady):
        compare_runs([first, waiting])
    with pytest.raises(PlannerError, match="2 to 8"):
        runs_to_compare([first.pk])
    with pytest.raises(PlannerError, match="2 to 8"):
        runs_to_compare([first.pk, first.pk])


def test_the_page_shows_both_and_its_address_can_be_sent(
    planner: User, viewer: User, first: Run
) -> None:
    run = other(planner, DOCUMENT.replace("ttft_ms: 1000", "ttft_ms: 2000"))
    page = signed_in(viewer).get(
        reverse("web:runs-compare"), {"run": [first.pk, run.pk], "policy": "today"}
    )
    text = text_of(page)
    (line,) = page.context["differences"]
    assert [cell.text for cell in line.cells] == ["1 s", "2 s"]
    assert "As planned" not in text
    lines = json_in(page, "replica-data")["data"]
    assert [line["name"] for line in lines] == [
        f"Run {number}, Today's fleet, simulated" for number in (first.pk, run.pk)
    ]  # fmt: skip
    equal = other(planner, first.document)
    same = signed_in(viewer).get(reverse("web:runs-compare"), {"run": f"{first.pk},{equal.pk}"})
    assert 'id="no-difference"' in same.content.decode()


def test_the_verdict_is_the_cheapest_run_that_meets_the_slo(planner: User, first: Run) -> None:
    text, met = DOCUMENT.replace("3600", "1800"), {"IW-F": True, "IW-N": True}
    missing = other(planner, text, cost_usd=300.0)
    dear, cheap = (other(planner, text, cost_usd=usd, slo_met=met) for usd in (400.0, 350.0))
    other_traffic = other(planner, DOCUMENT.replace("trace: week", "trace: month"), slo_met=met)

    def verdict(*runs: Run) -> str:
        numbers = {"run": [run.pk for run in runs]}
        return str(signed_in(planner).get(reverse("web:runs-compare"), numbers).context["verdict"])

    assert f"run {dear.pk} " in verdict(missing, dear)
    for runs in ((dear, cheap), (cheap, dear), (missing, dear, cheap)):
        assert f"Run {cheap.pk} " in verdict(*runs) and "$350" in verdict(*runs)
    assert not {"cheapest", "least"} & set(verdict(cheap, other_traffic).split())
    looser = other(planner, DOCUMENT.replace("ttft_ms: 1000", "ttft_ms: 2000"), cost_usd=300.0)
    assert "$50 " in verdict(cheap, looser) and f"un {looser.pk} misses" in verdict(cheap, looser)


def test_the_verdict_names_a_plan_without_a_simulation_and_its_planned_saving(
    planner: User, first: Run
) -> None:
    """A plan with other targets that was not simulated is no better for being cheaper."""
    plan = other(planner, DOCUMENT.replace("ttft_ms: 1000", "ttft_ms: 2000"))
    totals = {"gpu_hours": 9.0, "kwh": 9.0, "carbon_kg": 9.0, "starts": 1, "stops": 1}
    first.result["plan"]["totals"] = totals | {"usd": 500.0}
    plan.result["plan"]["totals"] = totals | {"usd": 400.0}
    plan.result |= {"policies": {}, "recommended": None}
    first.save()
    plan.save()
    numbers = {"run": [first.pk, plan.pk]}
    page = signed_in(planner).get(reverse("web:runs-compare"), numbers)
    assert f"Run {plan.pk} " in page.context["verdict"] and "$100" in page.context["verdict"]


def test_api_and_command_give_the_same(planner: User, first: Run, reader: APIClient) -> None:
    run = other(planner, DOCUMENT.replace("ttft_ms: 1000", "ttft_ms: 2000"))
    answer = reader.get("/api/v1/runs/compare/", {"run": [first.pk, run.pk]})
    assert answer.status_code == 200
    assert calling.answer("diff", first.pk, run.pk) == answer.json()
    assert "tiers[IW-F].ttft_ms" in calling.command("diff", first.pk, run.pk)[1]
    assert reader.get("/api/v1/runs/compare/", {"run": first.pk}).status_code == 400


def test_a_plan_alone_is_drawn_to_the_end_of_its_window(planner: User, first: Run) -> None:
    """Its lines ended as the last period began, as if nothing ran then."""
    tables = {"plan": run_table(first, "plan"), "demand": run_table(first, "demand")}
    second = completed_run(planner)
    for run in (first, second):
        run.kind, run.store = Run.Kind.PLAN, f"runs/{run.pk}-plan"
        run.save()
        row_arrays.tables_write(run.store, tables)
    client = signed_in(planner)
    for address, query, data in (
        (reverse("web:run", args=[first.pk]), {}, "over-time-2-data"),
        (reverse("web:runs-compare"), {"run": [first.pk, second.pk]}, "replica-data"),
    ):
        lines = json_in(client.get(address, query), data)["data"]
        assert {line["x"][-1] for line in lines if line["name"] != "Demand"} == {
            "2024-05-19T00:00:00"
        }
