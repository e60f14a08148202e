"""Autoscalers of other systems: what is exported comes back as the policy that it was."""

import re
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from planner.domain.replay.replay import policy_settings
from planner.domain.study import Setting
from planner.inputs.fleet import read_fleet
from planner.outputs.manifests.common import yaml_text
from planner.outputs.manifests.kinds import MANIFESTS
from planner.outputs.plans import policy_of_settings, rule_of
from planner.outputs.validation import faults
from planner.policies.base import Policy
from planner.policies.choice import policy_of
from planner.services.fleet_imports import PoolFacts, with_fleet
from simulation.policies.endpoint_picker import Signal
from simulation.policies.static import Static
from tests.planner.outputs.samples import asked, plan_of, pool_of
from tests.simulation.builders import fleet

PLACE = "llama-3.1-8b in us-east, 2 x H100-SXM"
TARGETS = st.floats(0.01, 100).map(lambda value: float(f"{value:.5g}"))


def exported(policy: Policy, roles: tuple[str, ...] = ("mixed",), **options: str) -> str:
    """The export of a policy, whose objects their reader takes."""
    rule = rule_of(policy, [Setting(w, PLACE, v) for w, v in FOUND.items()])
    pools = [pool_of((), f"chat-{role}" if len(roles) > 1 else "chat", role) for role in roles]
    documents = MANIFESTS[rule.export_format].documents(
        asked(plan_of(*pools, rule=rule), **options)
    )
    for document in documents:
        assert list(faults(document.schema, document.body)) == []
    return yaml_text(documents)


FOUND = {
    "prefill velocity, tokens/s": 12000.0, "limit of TTFT, ms": 1000.0, "limit of TBT, ms": 200.0,
    "target of KV memory in use": 0.6, "target of requests waiting per replica": 4.0,
}  # fmt: skip


def back(text: str) -> Policy:
    """The policy that an import reads."""
    (row,) = {str(pool.autoscaler): pool.autoscaler for pool in read_fleet(text)}.values()
    assert row is not None
    return policy_of(**{key: value for key, value in row.items() if value is not None})


@given(
    st.sampled_from(get_args(Signal)), TARGETS,
    st.integers(1, 200), st.integers(0, 9), st.integers(15, 600), st.integers(0, 600),
)  # fmt: skip
def test_a_scaled_object_comes_back(signal, target, percent, replicas, period, window):
    way = {"percent": percent, "replicas": replicas, "period_s": period, "window_s": window}
    policy = policy_of(
        f"epp-{signal}", target=target, second_target=target / 2, up=way, down=way, interval_s=20
    )
    read: Any = back(exported(policy))
    assert read.name == policy.name and (read.up, read.down) == (policy.up, policy.down)
    assert read.targets[0] == pytest.approx(policy.targets[0], rel=1e-5)
    if signal != "inflight":
        assert read.targets[1] == pytest.approx(policy.targets[1], rel=1e-5)
    assert read.interval_s == 20
    if signal == "tokens":
        assert read.prefill_tps == 12000.0
    if signal == "latency":
        assert (read.ttft_ms, read.tbt_ms) == (1000.0, 200.0)


@pytest.mark.parametrize("signal", get_args(Signal))
def test_every_query_keeps_to_a_given_namespace(signal):
    text = exported(policy_of(f"epp-{signal}"), namespace="serving")
    (body,) = YAML(typ="safe", pure=True).load_all(text)
    for trigger in body["spec"]["triggers"]:
        series = re.findall(r"\{[^}]*\}", trigger["metadata"]["query"])
        assert series and all('namespace="serving"' in labels for labels in series)


def test_prefill_and_decode_have_a_token_trigger_each():
    pools = read_fleet(exported(policy_of("epp-tokens"), ("prefill", "decode")))
    names = {pool.role: set(pool.autoscaler or {}) for pool in pools}
    assert "target" in names["prefill"] and "second_target" not in names["prefill"]


@given(
    st.sampled_from(["throughput", "latency", "load", "sla"]), st.booleans(),
    st.integers(1, 64) | st.none(), st.integers(1, 9),
    st.sampled_from(["constant", "arima", "kalman"]),
)  # fmt: skip
def test_a_planner_config_comes_back(target, apart, budget, least, predictor):
    policy = policy_of(
        f"dynamo-{target}", max_gpus=budget, min_replicas=least, predictor=predictor,
        decode_out_kv=0.7, decode_in_kv=0.3, prefill_out_tokens=6000, prefill_in_tokens=500,
    )  # fmt: skip
    roles = ("prefill", "decode") if apart else ("mixed",)
    read: Any = back(exported(policy, roles))
    assert (read.name, read.max_gpus, read.min_replicas) == (policy.name, budget, least)
    assert read.decision_interval_s == policy.decision_interval_s  # type: ignore[attr-defined]
    if target == "load":
        assert (read.decode_out_kv, read.decode_in_kv) == pytest.approx((0.7, 0.3))
        if apart:
            assert (read.prefill_out_tokens, read.prefill_in_tokens) == (6000, 500)
    if target == "sla":
        assert (read.predictor, read.ttft_ms, read.itl_ms) == (predictor, 1000.0, 200.0)


def test_a_bare_planner_config_has_the_defaults_of_its_reader():
    read: Any = back("optimization_target: sla\nmode: agg\n")
    assert (read.name, read.max_gpus, read.ttft_ms, read.itl_ms) == ("dynamo-sla", 8, 500.0, 50.0)
    assert read.predictor == "arima"


@given(
    st.sampled_from(["apa", "kpa"]), st.sampled_from(["memory", "queue"]),
    st.integers(0, 50), st.integers(1, 9), st.integers(0, 900),
)  # fmt: skip
def test_a_pod_autoscaler_comes_back(strategy, metric, percent, rate, seconds):
    schedule = {"days": ["mon", "sun"], "start": "08:00", "end": "18:30", "minimum": 2,
                "maximum": 9}  # fmt: skip
    policy = policy_of(
        f"aibrix-{strategy}", metric=metric, up_tolerance=percent / 100, max_up_rate=rate,
        down_cooldown_s=seconds, schedules=[schedule], panic_window_s=30,
    )  # fmt: skip
    read: Any = back(exported(policy))
    assert read.target == {"memory": 0.6, "queue": 4.0}[metric]
    same = policy.model_copy(update={"target": read.target})
    assert read == same


@pytest.mark.parametrize(
    "policy",
    [
        policy_of("epp-tokens", up={"percent": 50}, target_factor=0.5),
        policy_of("dynamo-load", decode_out_kv=0.9, max_gpus=12),
        policy_of("aibrix-apa", schedules=[
            {"days": ["sat"], "start": "00:00", "end": "12:00", "minimum": 1, "maximum": 3},
            {"start": "13:00", "end": "14:00", "minimum": 2, "maximum": 3},
        ]),
    ],
    ids=lambda policy: policy.name,
)  # fmt: skip
def test_the_settings_of_a_result_state_the_whole_policy(policy):
    made = fleet()
    zero = np.zeros((1, 1))
    series: Any = SimpleNamespace(ready=zero, starting=zero)
    rows = policy_settings(policy, Static([1]), made, series, ["1 x gpu"])
    assert policy_of_settings(policy.name, rows) == policy


SCENARIO = """
version: 1
name: A scenario
models: [llama-3.1-8b]
profiles: [{model: llama-3.1-8b, gpu: H100-SXM, tp: 2}]
regions: [{name: us-east, like: us-east-1, capacity: {H100-SXM: 64}}]
tiers: [{name: chat, ttft_ms: 1000, percentile: 95}]
traffic: {sources: [{file: week.csv, model: llama-3.1-8b}]}
policies: [lt-i]
"""


@pytest.mark.django_db
def test_the_setting_of_today_becomes_a_policy_of_the_scenario():
    text = exported(policy_of("epp-saturation", target=0.6))
    imported = with_fleet(SCENARIO, text, "keda.yaml")
    assert "label: today" in imported.document and "epp-saturation" in imported.document
    odd = text.replace("threshold: '16'", "threshold: '-1'").replace('"16"', '"-1"')
    assert "epp-saturation" not in with_fleet(SCENARIO, odd, "keda.yaml").document


@pytest.mark.django_db
@pytest.mark.parametrize(("predictor", "notes"), [("prophet", 1), ("arima", 0)])
def test_a_predictor_that_is_not_simulated_is_noted(predictor, notes):
    text = f"optimization_target: sla\nmode: agg\nload_predictor: {predictor}\n"
    given = PoolFacts(model="llama-3.1-8b", gpu="H100-SXM", tp=2)
    imported = with_fleet(SCENARIO, text, "planner.yaml", given)
    assert sum("predictor" in note for note in imported.notes) == notes
    assert "dynamo-sla" in imported.document


def test_the_shape_of_the_published_scaled_object_is_read():
    text = """
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: token-aware}
spec:
  scaleTargetRef: {name: chat}
  minReplicaCount: 1
  maxReplicaCount: 10
  pollingInterval: 15
  triggers:
    - type: prometheus
      metadata:
        query: |
          (sum(llm_d_epp_inflight_tokens{namespace="a"}) / 15928) or vector(0)
        threshold: "1.5"
    - type: prometheus
      metadata: {query: 'sum(vllm:kv_cache_usage_perc{namespace="a"})', threshold: "0.8"}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleUp: {policies: [{type: Pods, value: 1, periodSeconds: 180}]}
"""
    (pool,) = read_fleet(text)
    assert pool.autoscaler == {
        "name": "epp-tokens", "target": 1.5, "second_target": 0.8, "prefill_tps": 15928.0,
        "up": {"percent": 0.0, "replicas": 1, "period_s": 180.0, "window_s": 0.0},
        "interval_s": 15.0,
    }  # fmt: skip
