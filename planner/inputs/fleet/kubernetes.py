"""Read Kubernetes objects: what serves, and what scales it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.inputs.fleet.autoscalers import planner_row, pod_autoscaler_row, scaled_object_row
from planner.inputs.fleet.launch_lines import (
    LAUNCH,
    engine_facts,
    engine_of_image,
    is_catalogue_model,
    launch_pools,
    model_of_path,
    version_of_image,
)
from planner.inputs.fleet.pools import (
    RunningPool,
    Trigger,
    as_whole_number,
    gpu_type,
    number,
    one_line,
    rows,
    section,
)

Body = Mapping[str, Any]
Pools = Iterator[tuple[str, RunningPool]]  # (suffix of its name, pool) of each pool of an object
GPUS = re.compile(
    r"^((nvidia|amd|habana)\.(com|ai)/(gpu|gaudi)|google\.com/tpu|aws\.amazon\.com/neuron(device)?|gpu)$"
)
# Labels of nodes that name a GPU type or a cloud instance.
GPU_LABELS = re.compile(
    r"gpu[-.]?(product|name|type|model|class)|accelerator|instance-type|gpu-instance", re.IGNORECASE
)
MODEL_VARIABLES = ("MODEL_ID", "MODEL_NAME", "HF_MODEL_ID", "MODEL_PATH", "MODEL", "NIM_MODEL_NAME")
ROLES = {"prefill": "prefill", "decode": "decode"}
OURS = "headroom"
KEDA_MOST = 100  # KEDA's own default of maxReplicaCount
PAUSED = "autoscaling.keda.sh/paused"  # an annotation; with -replicas: at this number
DEFAULT_BOUNDS = {"ScaledObject": (0, KEDA_MOST), "HorizontalPodAutoscaler": (1, None)}
# Names of metrics inside a PromQL query.
METRIC = re.compile(r"\b(?:vllm|sglang|tgi|trtllm|nv|triton|DCGM|llm_d|inference\w*)[:_]\w+")


@dataclass(frozen=True, slots=True)
class Scaler:
    """An autoscaler: the object that it scales, and the facts it states about the pool."""

    target: str
    namespace: str
    kind: str
    facts: RunningPool
    rank: int  # of several on one object, the highest counts


def kubernetes_pools(objects: Sequence[Body]) -> list[RunningPool]:
    """Return the pools of Kubernetes objects, each with the facts of its autoscaler.

    An autoscaler whose target is not among the objects is a pool too.
    """
    pools = {(namespace_of(body), name): pool for body in objects for name, pool in _serving(body)}
    scalers = sorted(filter(None, map(_scaler, objects)), key=lambda scaler: scaler.rank)
    for scaler in scalers:
        key_of_target = next(
            (key for key in pools if key[1] == scaler.target and scaler.namespace in ("", key[0])),
            (scaler.namespace, scaler.target),
        )
        scaled = pools.get(key_of_target) or replace(
            _named_model(scaler.kind, scaler.target), name=scaler.target
        )
        pools[key_of_target] = scaler.facts.filled_from(scaled)
    planners = [row for row in map(planner_row, objects) if row]
    if planners and not pools:
        pools["", "planner"] = RunningPool(name="planner", scaled=True)
    for key, pool in pools.items():
        if planners and not pool.triggers and not pool.autoscaler:
            pools[key] = replace(pool, autoscaler=planners[0], scaled=True)
    return list(pools.values())


def namespace_of(body: Body) -> str:
    """Return the namespace of an object, or ""."""
    return one_line(section(body, "metadata").get("namespace"))


def _serving(body: Body) -> Pools:
    """Yield (name by which it is scaled, pool) of each pool that an object describes."""
    reader = SERVING.get(one_line(body.get("kind")))
    if reader is None:
        return
    name = one_line(section(body, "metadata").get("name"))
    for suffix, pool in reader(body):
        named_pool = replace(pool, name=f"{name}{suffix}")
        labels = _facts_of_labels(body, several_pools=bool(suffix))
        yield named_pool.name, labels.filled_from(named_pool)


def _workload(body: Body) -> Pools:
    """Yield the pool of a Deployment, StatefulSet or ReplicaSet."""
    pool = pod_facts(section(body, "spec", "template"))
    if pool is not None:
        yield "", _with_replicas(body, pool)


def _leader_worker_set(body: Body) -> Pools:
    """Yield the pool of a LeaderWorkerSet, whose replica is a group of pods."""
    group = section(body, "spec", "leaderWorkerTemplate")
    size = as_whole_number(group.get("size")) or 1
    worker = pod_facts(section(group, "workerTemplate"), always=True) or RunningPool()
    leader = pod_facts(section(group, "leaderTemplate")) or worker
    gpus = (leader.gpus or 0) + (size - 1) * (worker.gpus or 0)
    pool = leader.filled_from(worker)
    # Without a launch line, all GPUs of the group share the model.
    tp = pool.tp if pool.tp is not None else gpus or None
    yield "", _with_replicas(body, replace(pool, gpus=gpus or None, tp=tp))


def _inference_service(body: Body) -> Pools:
    """Yield the pool of KServe's InferenceService."""
    predictor = section(body, "spec", "predictor")
    model = section(predictor, "model")
    pod = {**predictor, "containers": predictor.get("containers") or ([model] if model else [])}
    pool = pod_facts({"spec": pod}, always=True) or RunningPool()
    least, most = (as_whole_number(predictor.get(key)) for key in ("minReplicas", "maxReplicas"))
    metric, target = one_line(predictor.get("scaleMetric")), number(predictor.get("scaleTarget"))
    served = replace(
        pool,
        model=pool.model or model_of_path(one_line(model.get("storageUri"))),
        replicas=1 if least is None else least,
        minimum=least,
        maximum=most,
        scaled=most is not None and most != least,
        triggers=(Trigger("kserve", metric, target),) if metric else (),
    )
    yield "", served


def _llm_inference_service(body: Body) -> Pools:
    """Yield the pools of KServe's LLMInferenceService: one, or prefill and decode."""
    spec = section(body, "spec")
    model = section(spec, "model")
    name = one_line(model.get("name")) or model_of_path(one_line(model.get("uri")))
    prefill = section(spec, "prefill")
    for suffix, part in (("", spec), ("-prefill", prefill)) if prefill else (("", spec),):
        pod = pod_facts({"spec": section(part, "template")}, always=True) or RunningPool()
        degree = section(part, "parallelism")
        scaling = section(part, "scaling")
        replicas = as_whole_number(part.get("replicas"))
        if replicas is None and not scaling:
            replicas = 1  # the default of Kubernetes
        role = "decode" if prefill else pod.role
        declared = RunningPool(
            model=name,
            tp=as_whole_number(degree.get("tensor")),
            pp=as_whole_number(degree.get("pipeline")),
            dp=as_whole_number(degree.get("data")),
            expert_parallel=True if degree.get("expert") else None,
            role="prefill" if suffix else role,
            replicas=None if scaling else replicas,
            minimum=as_whole_number(scaling.get("minReplicas")),
            maximum=as_whole_number(scaling.get("maxReplicas")),
            scaled=bool(scaling),
            triggers=keda_triggers(section(scaling, "keda").get("triggers")),
            notes=(*pod.notes, *cron_notes(section(scaling, "keda").get("triggers"))),
        )
        yield suffix, declared.filled_from(pod)


def _dynamo_graph(body: Body) -> Pools:
    """Yield the pools of a Dynamo graph, which a scaling adapter names GRAPH-COMPONENT."""
    spec = section(body, "spec")
    engine = one_line(spec.get("backendFramework"))
    parts = [(one_line(row.get("name")), row) for row in rows(spec.get("components"))]
    parts += [(name, section(part)) for name, part in section(spec, "services").items()]
    for name, part in parts:
        kind = one_line(
            part.get("subComponentType") or part.get("type") or part.get("componentType")
        )
        if kind not in ("worker", "prefill", "decode"):
            continue
        pod = section(part, "podTemplate") or {"spec": section(part, "extraPodSpec")}
        main = section(pod, "spec", "mainContainer")
        if main:
            pod = {"spec": {**section(pod, "spec"), "containers": [main]}}
        facts = pod_facts(pod, always=True) or RunningPool()
        gpus = _gpus(part) or facts.gpus
        nodes = as_whole_number(section(part, "multinode").get("nodeCount")) or 1
        replicas = as_whole_number(part.get("replicas"))
        worker = replace(
            facts,
            gpus=gpus and gpus * nodes,
            engine=facts.engine or engine,
            role=ROLES.get(kind, ""),
            replicas=1 if replicas is None else replicas,
        )
        yield f"-{name}", worker


SERVING: Mapping[str, Callable[[Body], Pools]] = {
    "Deployment": _workload,
    "StatefulSet": _workload,
    "ReplicaSet": _workload,
    "LeaderWorkerSet": _leader_worker_set,
    "InferenceService": _inference_service,
    "LLMInferenceService": _llm_inference_service,
    "DynamoGraphDeployment": _dynamo_graph,
}


def _with_replicas(body: Body, pool: RunningPool) -> RunningPool:
    """Return the pool with the replicas that its object states; the Kubernetes default is 1."""
    ready = as_whole_number(section(body, "status").get("replicas"))
    requested = as_whole_number(section(body, "spec").get("replicas"))
    counts = (ready, requested, 1)
    return replace(pool, replicas=next(count for count in counts if count is not None))


def _facts_of_labels(body: Body, *, several_pools: bool) -> RunningPool:
    """Return the facts about a pool in the labels and annotations that Headroom writes.

    ``several_pools``: the object has several pools, so only model and region are of each.
    """
    meta = section(body, "metadata")
    noted, labels = section(meta, "annotations"), section(meta, "labels")
    model = one_line(noted.get(f"{OURS}/model")) or one_line(noted.get("llm-d.ai/model-id"))
    facts = RunningPool(model=model, region=one_line(noted.get(f"{OURS}/region") or labels.get(
        "topology.kubernetes.io/region")))  # fmt: skip
    if several_pools:  # the other annotations are about one of them
        return facts
    width = as_whole_number(noted.get(f"{OURS}/gpus"))
    return replace(
        facts,
        gpu=one_line(noted.get(f"{OURS}/gpu")),
        gpus=width,
        tp=width,
        role=one_line(noted.get(f"{OURS}/role")).replace("both", "mixed"),
    )


def pod_facts(template: Body, *, always: bool = False) -> RunningPool | None:
    """Return the facts that the ``template`` of a pod states about its engine, as a pool.

    None if it has neither an engine nor GPUs; with ``always``, the pool then has fewer facts.
    """
    spec = section(template, "spec")
    containers = rows(spec.get("containers"))
    engines = [c for c in containers if _gpus(c) or LAUNCH.search(" ".join(_command(c)))] or [
        container
        for container in containers
        if engine_of_image(one_line(container.get("image")))
        and not any("router" in one_line(container.get(key)) for key in ("image", "name"))
    ]
    if not engines and not always:
        return None
    facts = _container_facts(engines[0]) if engines else RunningPool()
    labels = section(template, "metadata", "labels")
    gpu, note = _gpu_type_of(spec)
    return replace(
        facts,
        gpus=sum(_gpus(container) or 0 for container in engines) or None,
        gpu=gpu,
        role=facts.role or ROLES.get(one_line(labels.get("llm-d.ai/role")), ""),
        region=one_line(section(spec, "nodeSelector").get("topology.kubernetes.io/region")),
        notes=(note,) if note else (),
    )


def _command(container: Body) -> list[str]:
    """Return the words of the command and the arguments of a container."""
    parts = [container.get(key) for key in ("command", "args")]
    lists = ([part] if isinstance(part, str) else part for part in parts)
    return [str(word) for words in lists if isinstance(words, list) for word in words]


def _container_facts(container: Body) -> RunningPool:
    """Return the facts that a container's command, image and environment state, as a pool."""
    image = one_line(container.get("image"))
    variables = {
        one_line(row.get("name")): one_line(row.get("value")) for row in rows(container.get("env"))
    }
    command = _command(container)
    script = next((word for word in command if " " in word and LAUNCH.search(word)), "")
    if script:
        exports = "".join(f"{name}={value}\n" for name, value in variables.items())
        facts = next(iter(launch_pools(exports + script)), RunningPool())
    elif LAUNCH.search(" ".join(command)) or (command and (engine_of_image(image) or not image)):
        facts = engine_facts(command, variables, engine_of_image(image))
    else:
        facts = RunningPool(engine=engine_of_image(image))
    model_variable = next((variables[name] for name in MODEL_VARIABLES if variables.get(name)), "")
    return replace(
        facts,
        model=facts.model or model_of_path(model_variable),
        engine_version=version_of_image(image) if facts.engine else "",
    )


def _gpus(container: Body) -> int | None:
    """Return the number of GPUs that a container requests; None if it requests none."""
    for kind in ("limits", "requests"):
        resources = section(container, "resources", kind)
        counts = [
            as_whole_number(value) for name, value in resources.items() if GPUS.match(str(name))
        ]
        if any(counts):
            return sum(count or 0 for count in counts)
    return None


def _gpu_type_of(spec: Body) -> tuple[str, str]:
    """Return the GPU type of the nodes that a pod may run on, and a note.

    The type is "" if it is unknown. The note is "" unless several types are possible.
    """
    values_by_label = {key: [value] for key, value in section(spec, "nodeSelector").items()}
    affinity = section(spec, "affinity", "nodeAffinity")
    required = section(affinity, "requiredDuringSchedulingIgnoredDuringExecution")
    terms = rows(required.get("nodeSelectorTerms"))
    terms += [section(row, "preference") for row in rows(
        affinity.get("preferredDuringSchedulingIgnoredDuringExecution"))]  # fmt: skip
    for term in terms:
        for match in rows(term.get("matchExpressions")):
            if match.get("operator", "In") == "In" and isinstance(match.get("values"), list):
                values_by_label.setdefault(one_line(match.get("key")), list(match["values"]))
    types = dict.fromkeys(
        gpu_type(one_line(value))
        for key, values in values_by_label.items()
        if GPU_LABELS.search(str(key))
        for value in values
        if one_line(value) not in ("", "true", "nvidia", "gpu", "amd")
    )
    if len(types) > 1:
        return "", f"its pods may run on {', '.join(types)}. Name the GPU that they run on"
    return next(iter(types), ""), ""


def _scaler(body: Body) -> Scaler | None:
    """Return the autoscaler that an object describes; None if it describes none."""
    kind = one_line(body.get("kind"))
    if kind not in SCALERS:
        return None
    spec = section(body, "spec")
    rule, rank = SCALERS[kind]
    default_least, default_most = DEFAULT_BOUNDS.get(kind, (None, None))
    # KEDA writes minReplicaCount, all others minReplicas.
    least = spec.get("minReplicaCount", spec.get("minReplicas", default_least))
    most = spec.get("maxReplicaCount", spec.get("maxReplicas", default_most))
    labels = _facts_of_labels(body, several_pools=False)
    annotations = section(body, "metadata", "annotations")
    paused_at = as_whole_number(annotations.get(f"{PAUSED}-replicas"))
    notes = cron_notes(spec.get("triggers"))
    if paused_at is not None or annotations.get(PAUSED) in ("true", True):
        notes += ("its autoscaler is paused",)
    running = as_whole_number(section(body, "status").get("currentReplicas"))
    facts = replace(
        labels,
        model=labels.model or one_line(spec.get("modelID")),
        minimum=as_whole_number(least),
        maximum=as_whole_number(most),
        replicas=running if paused_at is None else paused_at,
        notes=notes,
        scaled=True,
        triggers=_triggers(rule, spec),
        autoscaler=AUTOSCALERS[kind](body) if kind in AUTOSCALERS else None,
    )
    target = one_line(section(spec, "scaleTargetRef").get("name"))
    name = target or one_line(section(body, "metadata").get("name"))
    return Scaler(name, namespace_of(body), rule, facts, rank)


def _triggers(rule: str, spec: Body) -> tuple[Trigger, ...]:
    """Return the triggers in the ``spec`` of an autoscaler; ``rule`` is its kind in SCALERS."""
    if rule == "keda":
        return keda_triggers(spec.get("triggers"))
    if rule == "hpa":
        return _hpa_triggers(spec.get("metrics"))
    sources = rows(spec.get("metricsSources")) if rule == "aibrix" else []
    return tuple(
        Trigger("aibrix", one_line(row.get("targetMetric")), number(row.get("targetValue")))
        for row in sources
    )


def _named_model(kind: str, target: str) -> RunningPool:
    """Return a pool whose model is the name of an autoscaler's target, or an empty pool.

    AIBrix (``kind``: aibrix) gives a deployment the name of its model. For other autoscalers, the
    name counts if the catalogue has such a model.
    """
    if not target or (kind != "aibrix" and not is_catalogue_model(target)):
        return RunningPool()
    return RunningPool(model=target, notes=("its model is taken from the name of its target",))


# By kind of object: the autoscaler, and its rank if several scale one object.
SCALERS = {
    "HorizontalPodAutoscaler": ("hpa", 1),
    "VariantAutoscaling": ("wva", 0),
    "PodAutoscaler": ("aibrix", 2),
    "ScaledObject": ("keda", 3),  # KEDA makes an HPA of its own for the same object
}


# Objects whose autoscaler has a policy of its own.
AUTOSCALERS = {"ScaledObject": scaled_object_row, "PodAutoscaler": pod_autoscaler_row}


def cron_notes(triggers: Any) -> tuple[str, ...]:
    """Return a note if KEDA's ``triggers`` include cron triggers, which are not imported."""
    if all(one_line(row.get("type")) != "cron" for row in rows(triggers)):
        return ()
    return (
        "its cron triggers are not imported, because a simulated autoscaler has one minimum for "
        "all hours. Add a periodic policy to simulate them",
    )


def keda_triggers(entries: Any) -> tuple[Trigger, ...]:
    """Return the load triggers among the ``triggers`` of a KEDA object, without cron triggers."""
    triggers = []
    for row in rows(entries):
        meta, kind = section(row, "metadata"), one_line(row.get("type"))
        if kind == "cron":
            continue
        query = one_line(meta.get("query"))
        names = list(dict.fromkeys(METRIC.findall(query)))
        metric = (
            one_line(meta.get("metricName")) or (names[0] if len(names) == 1 else query) or kind
        )
        value = number(meta.get("threshold", meta.get("value", meta.get("targetValue"))))
        per_replica = one_line(row.get("metricType")) != "Value"
        triggers.append(Trigger("keda", metric, value, per_replica, query))
    return tuple(triggers)


def _hpa_triggers(metrics: Any) -> tuple[Trigger, ...]:
    """Return the metrics of an HPA with their targets."""
    triggers = []
    for row in rows(metrics):
        kind = one_line(row.get("type"))
        part = section(row, kind[:1].lower() + kind[1:])
        metric = one_line(section(part, "metric").get("name")) or one_line(part.get("name"))
        target = section(part, "target")
        key = next((k for k in ("averageValue", "value", "averageUtilization") if k in target), "")
        triggers.append(Trigger("hpa", metric, number(target.get(key)), key != "value"))
    return tuple(triggers)
