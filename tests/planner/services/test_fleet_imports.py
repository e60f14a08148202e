"""The fleet of today in a scenario: its rows, the profiles that they need, and its autoscaler."""

import pytest
from django.urls import reverse

from planner.errors import ScenarioError
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import parse
from planner.models import Scenario
from planner.selectors.run_hardware import hardware_of
from planner.services.fleet_imports import PoolFacts, with_fleet
from planner.services.scenario_hardware import resolve_scenario
from planner.services.scenarios import scenario_create
from tests.planner import samples
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in

pytestmark = pytest.mark.django_db
DOCUMENT = samples.DOCUMENT.replace("  - name: east", "  - name: east\n    like: us-east-1")
LINE = "vllm serve Qwen/Qwen3-32B -tp 4"
KEDA = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  replicas: 3
  template:
    spec:
      nodeSelector: {cloud.google.com/gke-accelerator: nvidia-h100-80gb}
      containers:
        - name: server
          command: [vllm, serve, meta-llama/Llama-3.1-8B-Instruct]
          resources: {limits: {nvidia.com/gpu: 1}}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: chat}
spec:
  scaleTargetRef: {name: chat}
  minReplicaCount: 2
  maxReplicaCount: 100
  triggers:
    - {type: prometheus, metadata: {query: "sum(vllm:num_requests_waiting)", threshold: "7"}}
"""


def today(document):
    return [row.model_dump(exclude_defaults=True) for row in parse(document).fleet.today]


def test_what_runs_becomes_the_fleet_of_today_and_the_scenario_still_builds():
    imported = with_fleet(DOCUMENT + "policies: [lt-i]\n", KEDA, "keda.yaml")
    assert today(imported.document) == [
        {
            "model": "llama-3.1-8b", "region": "east", "gpu": "H100", "tp": 1, "replicas": 3,
            "minimum": 2, "maximum": 100,
        }
    ]  # fmt: skip
    scenario = parse(imported.document)
    assert len(scenario.profiles) == 1  # the scenario had it
    assert scenario.regions[0].capacity == {"H100": 100}  # room for all that may run
    policy = scenario.policies[-1].model_dump()
    assert (policy["name"], policy["metric"], policy["target"]) == ("keda", "queue", 7.0)
    build_hardware(scenario, hardware_of(resolve_scenario(scenario)))
    assert with_fleet(imported.document, KEDA, "again").document == imported.document


def test_another_model_brings_its_profile_and_leaves_other_rows():
    first = with_fleet(DOCUMENT, KEDA, "keda.yaml").document
    second = with_fleet(first, LINE, "line", PoolFacts(gpu="p5.48xlarge"))
    scenario = parse(second.document)
    assert [row["model"] for row in today(second.document)] == ["llama-3.1-8b", "qwen3-32b"]
    assert {row.model for row in scenario.profiles} == {"llama-3.1-8b", "qwen3-32b"}
    build_hardware(scenario, hardware_of(resolve_scenario(scenario)))
    assert "# Kept for the meeting in June." in second.document


def test_given_replicas_are_those_of_every_pool():
    document = with_fleet(DOCUMENT, LINE, "line", PoolFacts(gpu="H100", replicas=6)).document
    assert [row["replicas"] for row in today(document)] == [6]
    kept = with_fleet(DOCUMENT, KEDA, "keda", PoolFacts(replicas=4)).document
    assert (today(kept)[0]["replicas"], today(kept)[0]["minimum"]) == (4, 2)


def test_equal_pools_add_up_and_a_fixed_one_counts_with_its_own_replicas():
    deployment = KEDA.partition("---\n")[0]
    fixed = deployment.replace("name: chat", "name: fixed").replace("replicas: 3", "replicas: 5")
    (row,) = today(with_fleet(DOCUMENT, f"{KEDA}---\n{fixed}", "keda.yaml").document)
    assert (row["replicas"], row["minimum"], row["maximum"]) == (3 + 5, 2 + 5, 100 + 5)


@pytest.mark.parametrize(
    ("line", "spread"),
    [
        ("vllm serve deepseek-ai/DeepSeek-V3 -dp 8 -ep 1 --enable-expert-parallel",
         {"attention_dp": 8, "moe_ep": 8}),
        ("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --ep 8",
         {"tp": 8, "moe_ep": 8}),
        ("vllm serve meta-llama/Llama-3.1-405B -tp 4 -pp 2", {"tp": 4, "pp": 2}),
    ],
)  # fmt: skip
def test_the_profile_shares_the_gpus_as_the_engine_does(line, spread):
    document = with_fleet(DOCUMENT, line, "line", PoolFacts(gpu="H200")).document
    scenario = parse(document)
    profile = scenario.profiles[-1].model_dump()
    assert {name: profile[name] for name in spread} == spread
    assert scenario.fleet.today[0].tp == 8
    build_hardware(scenario, hardware_of(resolve_scenario(scenario)))


@pytest.mark.parametrize(
    ("text", "given", "named"),
    [
        (LINE, PoolFacts(), "gpu"),
        (LINE, PoolFacts(gpu="X999"), "X999"),
        ("vllm serve nobody/knows-it", PoolFacts(gpu="H100"), "knows-it"),
        (LINE, PoolFacts(gpu="H100", region="west"), "west"),
    ],
)
def test_what_is_missing_or_unknown_is_named(text, given, named):
    with pytest.raises(ScenarioError, match=named):
        with_fleet(DOCUMENT, text, "line", given)


def test_page_and_api_store_a_new_version(planner):
    scenario = scenario_create(owner=planner, document=DOCUMENT)
    page = reverse("web:scenario-fleet", args=[scenario.pk])
    client = signed_in(planner)
    assert client.get(page).status_code == 200
    assert client.post(page, {"text": LINE}).status_code == 422
    assert client.post(page, {"text": ""}).status_code == 400
    assert client.post(page, {"text": LINE, "gpu": "H100"}).status_code == 302
    answer = client_of(planner).post(
        f"/api/v1/scenarios/{scenario.pk}/fleet/", {"text": KEDA}, format="json"
    )
    assert answer.status_code == 200, answer.content
    assert answer.json()["pools"][0]["replicas_max"] == 100
    stored = Scenario.objects.get(pk=scenario.pk)
    assert stored.version == 3 and len(parse(stored.document).fleet.today) == 2
