"""The page of the search for deployments, and what is chosen there in a scenario; REST likewise."""

import json
from dataclasses import replace
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from planner.api.schema import CONFIGURED
from planner.domain.deployment_search.query import DeploymentQuery
from planner.errors import PlannerError
from planner.inputs.scenario.document import parse
from planner.models import Scenario, User
from planner.services.deployment_search import replace_deployments, stored_search
from planner.services.hardware import gpu_save
from planner.web.views.deployment_search import page_context
from tests.planner.web.pages import text_of
from tests.planner.web.study import DOCUMENT

ASKED = {
    "model": "llama-3.1-8b", "isl": 512, "osl": 64, "ttft_ms": 1000, "tbt_ms": 50,
    "gpus": "A100-80GB", "prices": "A100-80GB=2", "rps": 40,
}  # fmt: skip
CHOSEN = [
    {"model": "llama-3.1-8b", "gpu": "MI300X", "kind": "roofline", "engine": "vllm"},
    {"model": "llama-3.1-8b", "gpu": "H200", "kind": "roofline", "precision": "fp8", "tp": 2},
]


def test_a_search_says_how_far_it_is_while_it_goes_on(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seconds went by with nothing on the page."""
    how_far = reverse("web:configure-progress")
    seen: list[str] = []

    def search(asked: Any, heard: Any) -> Any:
        heard(0.5, "Simulating the best")
        seen.append(text_of(client.get(how_far)))
        raise PlannerError("enough")

    monkeypatch.setattr("planner.web.views.deployment_search.stored_search", search)
    assert 'data-progress="searching"' in client.get(reverse("web:configure")).content.decode()
    assert client.get(reverse("web:configure"), ASKED).context["pending"] and not seen
    assert "enough" in text_of(client.get(reverse("web:configure"), ASKED | {"wait": "1"}))
    assert "Simulating the best, 50% done" in seen[0]
    assert client.get(how_far).status_code == 204


def test_the_same_question_is_computed_once_until_the_user_s_hardware_changes(
    planner: User,
) -> None:
    query = DeploymentQuery(model="llama-3.1-8b", isl=512, osl=64, gpus=("A100-80GB",))
    reports: list[float] = []

    def progress(done: float, what: str) -> None:
        reports.append(done)

    first = stored_search(query, progress)
    computed = len(reports)
    again = stored_search(query, progress)
    assert computed and len(reports) == computed and again == first
    facts = {"memory_gb": 48, "idle_w": 30, "prefill_w": 300, "decode_w": 200}
    gpu_save(user=planner, name="own-gpu", facts=facts, source="its data sheet")
    stored_search(query, progress)
    assert len(reports) > computed


def test_the_price_of_a_simpler_deployment_stands_beside_a_split_one(planner: User) -> None:
    query = DeploymentQuery(model="llama-3.1-8b", isl=512, osl=64, gpus=("A100-80GB",))
    found = stored_search(query, lambda done, what: None)
    first = found.candidates[0]
    assert first.usd_per_mtok is not None
    split = replace(first, mode="disagg")
    plain = replace(first, mode="agg", usd_per_mtok=1.15 * first.usd_per_mtok)
    simpler = page_context(replace(found, candidates=(split, plain)))["simpler"]
    assert simpler == (plain, pytest.approx(0.15))
    assert page_context(replace(found, candidates=(plain, split)))["simpler"] is None


def test_what_is_chosen_opens_in_the_editor_that_keeps_it(client: Client, pools: Scenario) -> None:
    sent: dict[str, Any] = {
        "model": "llama-3.1-8b", "base": f"scenario:{pools.pk}",
        "chosen": [json.dumps([row]) for row in CHOSEN],
    }  # fmt: skip
    page = client.post(reverse("web:scenario-new"), sent)
    assert page.status_code == 200 and "MI300X" in page.content.decode()
    none = client.post(reverse("web:scenario-new"), sent | {"chosen": []})
    assert none.status_code == 400 and "tick one" in text_of(none)
    bad = client.post(reverse("web:scenario-new"), sent | {"chosen": "{"})
    assert bad.status_code == 400
    assert Scenario.objects.count() == 1


def test_a_scenario_of_a_search_has_its_rate_and_lengths(client: Client, planner: User) -> None:
    row = {"model": "llama-3.1-8b", "gpu": "H100-SXM", "tp": 1}
    sent = {
        "model": row["model"], "base": "requests", "chosen": json.dumps([row]), "rps": "4",
        "isl": "1500", "osl": "300", "ttft_ms": "900", "tbt_ms": "",
    }  # fmt: skip
    page = client.post(reverse("web:scenario-new"), sent)
    drafted = parse(page.context["text"])
    (source,), (tier,) = drafted.traffic.sources, drafted.tiers
    assert source.launch and source.launch.requests_per_day == 4 * 86_400
    assert source.input_tokens and source.output_tokens
    assert (source.input_tokens.mean, source.output_tokens.mean) == (1500, 300)
    assert tier.ttft_ms == 900 and [profile.tp for profile in drafted.profiles] == [1]


def test_the_document_has_the_chosen_ones_and_their_gpus() -> None:
    before = parse(DOCUMENT)
    model = before.models[0].name
    chosen = [row | {"model": model} for row in CHOSEN]
    text = replace_deployments(DOCUMENT, model, chosen)
    after = parse(text)
    drafted_rows = [
        (profile.gpu, profile.engine, profile.tp)
        for profile in after.profiles
        if profile.model == model
    ]
    assert drafted_rows == [("MI300X", "vllm", 1), ("H200", None, 2)]
    kept = [profile for profile in before.profiles if profile.model != model]
    assert [profile for profile in after.profiles if profile.model != model] == kept
    for region, old in zip(after.regions, before.regions, strict=True):
        assert region.capacity.items() >= old.capacity.items()
        assert region.capacity["H200"] == max(old.capacity.values())
    assert "# Kept across edits." in text
    drafted = parse(
        replace_deployments(DOCUMENT, "qwen3-32b", [CHOSEN[1] | {"model": "qwen3-32b"}],
                      {"ttft_ms": 321.0, "tbt_ms": None}, in_place=True)
    )  # fmt: skip
    assert [model.name for model in drafted.models] == ["qwen3-32b"]
    assert {source.model for source in drafted.traffic.sources} == {"qwen3-32b"}
    assert min(tier.ttft_ms or 1e9 for tier in drafted.tiers) == 321.0


def test_the_api_searches_and_puts_what_it_found_into_a_scenario(api, pools: Scenario) -> None:
    result = api.post("/api/v1/configure/", CONFIGURED, format="json").json()
    assert len(result["candidates"]) == 2 and result["pareto"] and result["ruled_out"]
    sent = {
        "model": "llama-3.1-8b", "scenario": pools.name,
        "profiles": result["candidates"][0]["profiles"],
    }  # fmt: skip
    document = api.post("/api/v1/configure/scenario/", sent, format="json").json()["document"]
    assert any(profile.kind == "roofline" for profile in parse(document).profiles)
    assert parse(document).name == f"{pools.name}, A100-80GB"
    neither = {name: value for name, value in sent.items() if name != "scenario"}
    refused = api.post("/api/v1/configure/scenario/", neither, format="json")
    assert refused.status_code == 400 and "scenario or a trace" in refused.json()["detail"]
    unknown = api.post("/api/v1/configure/", CONFIGURED | {"gpus": ["abacus"]}, format="json")
    assert unknown.status_code in (400, 422) and "abacus" in unknown.json()["detail"]
