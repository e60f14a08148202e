"""What runs today, from what a cluster states: exports come back, and launch lines are read."""

import contextlib
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import ScenarioError
from planner.inputs.fleet import read_fleet
from planner.outputs.manifests.common import yaml_text
from planner.outputs.manifests.kinds import MANIFESTS
from planner.outputs.plans import Rule
from tests.planner.outputs.samples import asked, plan_of, pool_of, steps_of

DAY = 1440
ONE_OBJECT_A_POOL = ("hpa", "keda", "wva", "aibrix")


def exported(kind, plan, **options):
    documents = MANIFESTS[kind].documents(asked(plan, **options))
    return yaml_text(documents)


def one(text):
    (pool,) = read_fleet(textwrap.dedent(text))
    return pool


# The inverse of the exporters


@pytest.mark.parametrize("kind", ONE_OBJECT_A_POOL)
@settings(max_examples=20)
@given(counts=st.lists(st.integers(1, 30), min_size=2, max_size=6), gpus=st.integers(1, 16))
def test_a_plan_comes_back_from_its_export(kind, counts, gpus):
    length = DAY // len(counts)
    pools = [
        pool_of(steps_of([(length, count + more) for count in counts]), name, gpus=gpus)
        for name, more in (("chat", 0), ("code", 3))
    ]
    plan = plan_of(*pools, repeat="daily")
    back = {pool.name: pool for pool in read_fleet(exported(kind, plan))}
    assert back.keys() == {"chat", "code"}
    for pool in pools:
        read = back[pool.name]
        assert (read.model, read.gpu, read.region) == (pool.model, pool.gpu, pool.region)
        assert (read.width, read.role) == (pool.gpus, "mixed")
        # AIBrix keeps the replicas of the minute before midnight outside its schedules.
        least = (
            counts[-1] + pool.steps[-1].replicas - counts[-1]
            if kind == "aibrix"
            else pool.min_replicas
        )
        assert (read.minimum, read.maximum) == (least, pool.max_replicas)
        assert read.needs == ()


@pytest.mark.parametrize("kind", ["llm-d", "dynamo", "kserve"])
def test_prefill_and_decode_come_back(kind):
    steps = steps_of([(8 * 60, 2), (10 * 60, 5), (6 * 60, 3)])
    pools = [pool_of(steps, role, role=role, gpus=4) for role in ("prefill", "decode")]
    back = {pool.role: pool for pool in read_fleet(exported(kind, plan_of(*pools)))}
    assert back.keys() == {"prefill", "decode"}
    assert {pool.width for pool in back.values()} == {4}
    counts = {(pool.replicas, pool.minimum, pool.maximum) for pool in back.values()}
    assert len(counts) == 1
    if kind != "llm-d":  # values of a chart have one number and no model
        assert {(pool.model, pool.minimum, pool.maximum) for pool in back.values()} == {
            ("llama-3.1-8b", 2, 5)
        }


@pytest.mark.parametrize(("kind", "metric"), [("hpa", "queue"), ("keda", "concurrency")])
def test_the_rule_of_an_autoscaler_comes_back(kind, metric):
    plan = plan_of(pool_of(()), rule=Rule(kind, metric, 5.0, 0.1, 300.0))
    (pool,) = read_fleet(exported(kind, plan))
    (trigger,) = pool.triggers
    assert (trigger.measure, trigger.value, trigger.per_replica) == (metric, 5.0, True)
    assert (pool.minimum, pool.maximum) == (1, 5)


# Launch lines


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-num-seqs=128",
         {"model": "Qwen/Qwen3-32B", "tp": 4, "engine": "vllm", "max_batch": 128}),
        ("vllm serve --model meta-llama/Llama-3.1-8B-Instruct -tp 2 -pp 2",
         {"model": "meta-llama/Llama-3.1-8B-Instruct", "width": 4}),
        ("python3 -m vllm.entrypoints.openai.api_server --model /models/Qwen3-32B \\\n"
         "  --tensor_parallel_size=8 --quantization fp8 --kv-cache-dtype fp8_e4m3",
         {"model": "Qwen3-32B", "tp": 8, "precision": "fp8", "kv_precision": "fp8"}),
        ("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 "
         "--enable-dp-attention --port 30000",
         {"model": "deepseek-ai/DeepSeek-V3", "width": 8, "engines": 1, "engine": "sglang"}),
        ("vllm serve deepseek-ai/DeepSeek-R1 -dp 8 --enable-expert-parallel",
         {"width": 8, "engines": 1}),
        ("vllm serve Qwen/Qwen3-8B --data-parallel-size 4", {"width": 1, "engines": 4}),
        ("docker run --gpus all -v ~/.cache/vllm:/root/.cache -p 8000:8000 --ipc=host "
         "vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B",
         {"model": "Qwen/Qwen3-8B", "tp": 1, "engine_version": "0.11.0", "engine": "vllm"}),
        ("export MODEL=Qwen/Qwen3-8B\nTP=2\nnohup vllm serve $MODEL -tp ${TP} > log.txt &",
         {"model": "Qwen/Qwen3-8B", "tp": 2}),
        ("trtllm-serve Qwen/Qwen3-8B --tp_size 2 --max_batch_size 64",
         {"model": "Qwen/Qwen3-8B", "tp": 2, "engine": "trtllm", "max_batch": 64}),
        ("CUDA_VISIBLE_DEVICES=0,1 vllm serve ./llama-3.1-8b -tp 2 # the small one",
         {"model": "llama-3.1-8b", "tp": 2}),
        ('vllm serve x/y --kv-transfer-config \'{"kv_role":"kv_producer"}\'', {"role": "prefill"}),
    ],
)  # fmt: skip
def test_a_launch_line_says_what_it_starts(line, expected):
    pool = one(line)
    assert {name: getattr(pool, name) for name in expected} == expected
    assert pool.replicas == 1


def test_a_value_that_no_variable_has_is_not_stated():
    assert "model" in one("vllm serve $UNKNOWN -tp 2").needs


def test_a_script_starts_a_pool_a_line():
    pools = read_fleet("vllm serve a/b -tp 2 &\nvllm serve c/d --port 8001 &\nwait\n")
    assert [(pool.model, pool.tp) for pool in pools] == [("a/b", 2), ("c/d", 1)]


def test_nodes_of_one_replica_are_one_pool():
    line = "python -m sglang.launch_server --model-path a/b --tp 16 --nnodes 2 --node-rank"
    (pool,) = read_fleet(f"{line} 0\n{line} 1\n")
    assert (pool.model, pool.tp, pool.replicas) == ("a/b", 16, 1)


# Kubernetes


POD = """
      nodeSelector: {node.kubernetes.io/instance-type: p5.48xlarge}
      containers:
        - name: proxy
          image: envoy:1
        - name: server
          image: vllm/vllm-openai:v0.10.1
          command: ["/bin/sh", "-c"]
          args: ["exec vllm serve $MODEL_ID --tensor-parallel-size 8"]
          env: [{name: MODEL_ID, value: Qwen/Qwen3-32B}]
          resources: {limits: {nvidia.com/gpu: "8"}}
"""


def test_an_autoscaler_joins_what_it_scales_and_the_router_is_no_pool():
    text = f"""\
apiVersion: v1
kind: List
items:
- apiVersion: apps/v1
  kind: Deployment
  metadata: {{name: chat, namespace: prod}}
  spec:
    replicas: 3
    template:
     spec:{POD}
- apiVersion: apps/v1
  kind: Deployment
  metadata: {{name: router, namespace: prod}}
  spec: {{template: {{spec: {{containers: [{{name: r, image: lmcache/lmstack-router}}]}}}}}}
- apiVersion: keda.sh/v1alpha1
  kind: ScaledObject
  metadata: {{name: chat-so, namespace: prod}}
  spec:
    scaleTargetRef: {{name: chat}}
    minReplicaCount: 2
    maxReplicaCount: 9
    triggers:
      - type: prometheus
        metadata: {{query: 'sum(vllm:num_requests_waiting{{pod=~"chat.*"}})', threshold: "5"}}
"""
    pool = one(text)
    assert (pool.model, pool.gpu, pool.width) == ("Qwen/Qwen3-32B", "H100-SXM", 8)
    assert (pool.replicas, pool.minimum, pool.maximum) == (3, 2, 9)
    assert (pool.triggers[0].measure, pool.triggers[0].value) == ("queue", 5.0)
    assert pool.engine_version == "0.10.1" and pool.needs == ()


def test_a_paused_autoscaler_keeps_its_replicas():
    text = """\
kind: ScaledObject
metadata: {name: s, annotations: {autoscaling.keda.sh/paused-replicas: "2"}}
spec:
  scaleTargetRef: {name: llama}
  maxReplicaCount: 10
"""
    (pool,) = read_fleet(text)
    assert (pool.replicas, pool.maximum, len(pool.notes)) == (2, 10, 1)


KEDA = """\
kind: ScaledObject
metadata: {name: s}
spec:
  scaleTargetRef: {name: llama}
  minReplicaCount: 2
  triggers:
    - type: cron
      metadata: {timezone: Europe/Berlin, start: 0 8 * * 1-5, end: 0 18 * * 1-5, desiredReplicas: "6"}
    - {type: prometheus, metadata: {query: vllm:num_requests_waiting, threshold: "5"}}
"""  # noqa: E501
SERVICE = """\
kind: LLMInferenceService
metadata: {name: s}
spec:
  model: {name: llama, uri: hf://meta-llama/Llama-3.1-8B-Instruct}
  scaling: {minReplicas: 2, keda: {triggers: [{type: cron, metadata: {}}, {type: prometheus, metadata: {query: vllm:num_requests_waiting}}]}}
"""  # noqa: E501
STACK = """\
servingEngineSpec:
  modelSpec:
    - name: llama
      modelURL: meta-llama/Llama-3.1-8B-Instruct
      keda: {enabled: true, minReplicaCount: 2, triggers: [{type: cron, metadata: {}}, {type: prometheus, metadata: {query: vllm:num_requests_waiting}}]}
"""  # noqa: E501


@pytest.mark.parametrize("text", [KEDA, SERVICE, STACK])
def test_a_schedule_of_keda_is_left_out_with_a_note(text):
    (pool,) = read_fleet(text)
    assert [trigger.measure for trigger in pool.triggers] == ["queue"]
    assert (pool.minimum, len(pool.notes)) == (2, 1)
    (unscheduled,) = read_fleet(text.replace("type: cron", "type: cpu"))
    assert unscheduled.notes == ()


def test_a_leader_worker_set_is_a_group_of_pods():
    text = f"""\
kind: LeaderWorkerSet
metadata: {{name: big}}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 4
    workerTemplate:
     spec:{POD.replace("--tensor-parallel-size 8", "-tp 8 -pp 4")}
"""
    pool = one(text)
    assert (pool.replicas, pool.gpus, pool.width) == (2, 32, 32)


def test_vllms_production_stack_is_read():
    pool = one("""\
        servingEngineSpec:
          modelSpec:
            - name: llama3
              repository: vllm/vllm-openai
              tag: v0.9.2
              modelURL: meta-llama/Llama-3.1-8B-Instruct
              replicaCount: 2
              requestGPU: 2
              vllmConfig: {tensorParallelSize: 2, extraArgs: ["--max-num-seqs", "64"]}
              keda:
                enabled: true
                minReplicaCount: 1
                maxReplicaCount: 4
                triggers:
                  - type: prometheus
                    metadata: {query: 'vllm:num_requests_waiting{model="llama3"}', threshold: "5"}
        """)
    assert (pool.model, pool.tp, pool.replicas) == ("meta-llama/Llama-3.1-8B-Instruct", 2, 2)
    assert (pool.minimum, pool.maximum, pool.max_batch) == (1, 4, 64)
    assert pool.triggers[0].measure == "queue" and pool.needs == ("gpu",)


def test_a_compose_file_is_read():
    pool = one("""\
        services:
          web: {image: nginx}
          llm:
            image: vllm/vllm-openai:v0.9.1
            command: --model Qwen/Qwen3-32B --tensor-parallel-size 2
            deploy:
              replicas: 3
              resources: {reservations: {devices: [{driver: nvidia, count: 2}]}}
        """)
    assert (pool.name, pool.model, pool.gpus, pool.replicas) == ("llm", "Qwen/Qwen3-32B", 2, 3)
    assert pool.engine_version == "0.9.1"


@pytest.mark.parametrize(
    ("label", "value", "resource", "count", "gpu"),
    [
        ("cloud.google.com/gke-tpu-accelerator", "tpu-v6e-slice", "google.com/tpu", 8, "TPU-v6e"),
        ("cloud.google.com/gke-tpu-accelerator", "tpu7x", "google.com/tpu", 4, "TPU-v7"),
        ("node.kubernetes.io/instance-type", "trn2.48xlarge", "aws.amazon.com/neuron", 16,
         "Trainium2"),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI325X_OAM", "amd.com/gpu", 8, "MI325X"),
        ("node.kubernetes.io/instance-type", "gx3d-160x1792x8gaudi3", "habana.ai/gaudi", 8,
         "Gaudi-3"),
        ("node.kubernetes.io/instance-type", "BM.GPU.MI355X.8", "amd.com/gpu", 8, "MI355X"),
    ],
)  # fmt: skip
def test_accelerators_of_all_vendors(label, value, resource, count, gpu):
    text = f"""\
        kind: Deployment
        metadata: {{name: any}}
        spec:
          template:
            spec:
              nodeSelector: {{{label}: {value}}}
              containers:
                - name: s
                  image: vllm/vllm-openai:v0.10.1
                  args: [--model, ibm-granite/granite-4.0-h-small]
                  resources: {{limits: {{{resource}: {count}}}}}
        """
    pool = one(text)
    assert (pool.gpu, pool.gpus) == (gpu, count)
    assert "gpu" not in pool.needs


def test_several_gpu_types_are_asked_about():
    text = """\
        kind: Deployment
        metadata: {name: any}
        spec:
          template:
            spec:
              affinity:
                nodeAffinity:
                  requiredDuringSchedulingIgnoredDuringExecution:
                    nodeSelectorTerms:
                      - matchExpressions:
                          - key: nvidia.com/gpu.product
                            operator: In
                            values: [NVIDIA-H100-80GB-HBM3, NVIDIA-A100-SXM4-80GB]
              containers:
                - {name: s, image: lmsysorg/sglang:v0.5.1, resources: {limits: {nvidia.com/gpu: 1}}}
        """
    pool = one(text)
    assert pool.gpu == "" and "gpu" in pool.needs and pool.notes


@pytest.mark.parametrize(
    "text",
    [
        "", "version: 1", "kind: Service", "{{ .Values.x }}", "a: [", "just words", "- 1",
        "kind: Deployment\nspec: []", "kind: Deployment\nmetadata: 5\nspec: {template: 7}",
        "kind: HorizontalPodAutoscaler\nspec: {metrics: {a: b}}\n---\nkind: [1]",
        "decode: {replicas: many}", "servingEngineSpec: {modelSpec: {name: x}}",
    ],
)  # fmt: skip
def test_what_describes_no_fleet_is_refused_or_read_in_part(text):
    pools = []
    with contextlib.suppress(ScenarioError):
        pools = read_fleet(text)
    assert all(pool.needs for pool in pools)
