"""Starting work over the API: each verb, the runs of a scenario, keys for repeated requests."""

import pytest

from planner.models import Run
from tests.planner.samples import DOCUMENT

VERBS = {
    "forecast": {"method": "seasonal-naive"},
    "plan": {"solver": "cbc", "gap": 0.01, "time_limit_s": 5},
    "simulate": {"policy": "lt-i", "seed": 3},
    "compare": {"policies": ["flat-peak", "lt-i"], "seed": 5},
    "provision": {"level": "operator", "method": "exact"},
    "place": {"method": "exact", "ratio": [1, 2], "grow": 0.25},
    "share": {"by": "time", "hours": 2.0},
    "backtest": {"methods": ["last-value"], "days": 1, "by_coverage": True},
    "outlook": {"horizon": "quarter"},
    "pareto": {"of": "energy,cost", "points": 3},
    "size": {"isl": 5, "osl": 6},
    "pd-ratio": {"service": "llama-3.1-8b"},
}


def url(verb):
    return f"/api/v1/{verb}/"


@pytest.mark.parametrize(
    ("verb", "options", "how"),
    [
        *((*verb, how) for verb in VERBS.items() for how in ("name", "of a scenario")),
        ("plan", {}, "id"),
        ("plan", {}, "document"),
    ],
)
def test_a_verb_starts_a_run_to_poll(api, planner, scenario, verb, options, how):
    what = {
        "name": {"scenario": "Chat"},
        "id": {"scenario": scenario.pk},
        "document": {"document": DOCUMENT},
    }
    if how == "of a scenario":
        runs = f"/api/v1/scenarios/{scenario.pk}/runs/"
        answer = api.post(runs, {"kind": verb, "options": options}, format="json")
    else:
        answer = api.post(url(verb), {**what[how], **options}, format="json")
    assert answer.status_code == 202
    assert answer["Retry-After"] == "1"
    assert api.get(answer["Location"]).json() == answer.json()
    run = Run.objects.get(pk=answer.json()["id"])
    assert (run.kind, run.owner, run.options) == (verb, planner, options)
    assert run.scenario == (None if how == "document" else scenario)
    assert (run.name, run.document) == ("Chat", DOCUMENT)
    assert run.seed == options.get("seed", 7)


@pytest.mark.parametrize(
    ("verb", "body", "field"),
    [
        ("plan", {}, ""),
        ("plan", {"scenario": "Chat", "document": DOCUMENT}, ""),
        ("plan", {"scenario": "Chat", "solvr": "cbc"}, "solvr"),
        ("plan", {"scenario": "Chat", "policy": "lt-i"}, "policy"),
        ("plan", {"scenario": "Chat", "solver": "gurobi"}, "solver"),
        ("plan", {"scenario": "Chat", "gap": -1}, "gap"),
        ("plan", {"scenario": "Chat", "minimise": "latency"}, "minimise"),
        ("plan", {"scenario": "Chat", "periods": "some"}, "periods"),
        ("pareto", {"scenario": "Chat", "of": "cost"}, "of"),
        ("pareto", {"scenario": "Chat", "of": "energy,gpu-hours"}, "of"),
        ("pareto", {"scenario": "Chat", "points": 1}, "points"),
        ("plan", {"scenario": "Chat", "gap": "nan"}, "gap"),
        ("plan", {"scenario": "Chat", "time_limit_s": 0}, "time_limit_s"),
        ("plan", {"scenario": "Chat", "time_limit_s": "inf"}, "time_limit_s"),
        ("plan", {"scenario": ["Chat"]}, "scenario"),
        ("simulate", {"scenario": "Chat", "policy": "magic"}, "policy"),
        ("simulate", {"scenario": "Chat", "policy": "lt-i", "seed": -1}, "seed"),
        ("simulate", {"scenario": "Chat", "policy": "lt-i", "seed": 2**40}, "seed"),
        ("compare", {"scenario": "Chat", "policies": []}, "policies"),
        ("compare", {"scenario": "Chat", "policies": "lt-i"}, "policies"),
        ("compare", {"scenario": "Chat", "policies": ["magic"]}, "policies.0"),
        ("forecast", {"scenario": "Chat", "method": "crystal ball"}, "method"),
        ("forecast", {"scenario": "Chat", "horizon_s": 60}, "horizon_s"),
        ("forecast", {"scenario": "Chat", "trace": "conv"}, ""),
    ],
)
def test_options_that_are_unknown_or_wrong_name_their_field(api, scenario, verb, body, field):
    answer = api.post(url(verb), body, format="json")
    assert answer.status_code == 400
    assert answer["Content-Type"] == "application/problem+json"
    assert field in [fault["field"] for fault in answer.json()["errors"]]
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "kind"),
        ({"kind": "ingest"}, "kind"),
        ({"kind": "simulate"}, "options.policy"),
        ({"kind": "plan", "options": {"policy": "lt-i"}}, "options.policy"),
        ({"kind": "plan", "options": ["cbc"]}, "options"),
        ({"kind": "plan", "solver": "cbc"}, "solver"),
    ],
)
def test_a_run_of_a_scenario_names_wrong_fields(api, scenario, body, field):
    answer = api.post(f"/api/v1/scenarios/{scenario.pk}/runs/", body, format="json")
    assert answer.status_code == 400
    assert field in [fault["field"] for fault in answer.json()["errors"]]


def test_a_trace_is_forecast_as_it_came(api, trace):
    body = {"trace": "conv", "bin_s": 900, "horizon_s": 3600, "method": "auto", "origins": 3}
    answer = api.post(url("forecast"), body, format="json")
    assert answer.status_code == 202
    run = Run.objects.get(pk=answer.json()["id"])
    assert run.trace == trace
    assert run.options == {key: value for key, value in body.items() if key != "trace"}
    assert api.post(url("plan"), {"trace": "conv"}, format="json").status_code == 400


def test_what_is_not_there_or_not_valid_starts_nothing(api, scenario):
    assert api.post(url("plan"), {"scenario": "None"}, format="json").status_code == 404
    assert api.post(url("forecast"), {"trace": "none"}, format="json").status_code == 404
    wrong = api.post(url("plan"), {"document": "version: 2"}, format="json")
    assert wrong.status_code == 422
    assert "line 1" in wrong.json()["detail"]
    none = api.post("/api/v1/scenarios/None/runs/", {"kind": "plan"}, format="json")
    assert none.status_code == 404
    assert not Run.objects.exists()


def test_the_same_key_gives_the_first_run(api, scenario):
    key = {"Idempotency-Key": "monday"}
    body = {"scenario": "Chat", "gap": 0.01}
    first = api.post(url("plan"), body, format="json", headers=key)
    again = api.post(url("plan"), body, format="json", headers=key)
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["id"] == again.json()["id"]
    assert first["Location"] == again["Location"]
    Run.objects.update(state=Run.State.COMPLETED)
    over = api.post(url("plan"), body, format="json", headers=key)
    assert over.status_code == 200
    assert over.json()["id"] == first.json()["id"]
    assert Run.objects.count() == 1


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("plan", {"scenario": "Chat", "gap": 0.02}),
        ("plan", {"document": DOCUMENT, "gap": 0.01}),
        ("compare", {"scenario": "Chat"}),
    ],
)
def test_the_same_key_with_another_request_is_refused(api, scenario, verb, body):
    key = {"Idempotency-Key": "monday"}
    first = {"scenario": "Chat", "gap": 0.01}
    api.post(url("plan"), first, format="json", headers=key)
    answer = api.post(url(verb), body, format="json", headers=key)
    assert answer.status_code == 422
    assert "monday" in answer.json()["detail"]
    assert Run.objects.count() == 1
