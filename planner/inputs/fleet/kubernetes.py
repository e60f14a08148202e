"""Read Kubernetes objects: what serves, and what scales it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
    gpu_type,
    number,
    one_line,
    replica_count,
    rows,
    section,
    whole_number,
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
LABEL_PREFIX = "headroom"
REGION_LABEL = "topology.kubernetes.io/region"
KEDA_MAX_REPLICAS = 100  # KEDA's own default of maxReplicaCount
PAUSED_ANNOTATION = "autoscaling.keda.sh/paused"  # an annotation; with -replicas: at this number
DEFAULT_BOUNDS = {"ScaledObject": (0, KEDA_MAX_REPLICAS), "HorizontalPodAutoscaler": (1, None)}
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

    An autoscaler whose target is not among the objects is a pool too. Pools without an autoscaler
    are scaled by Dynamo's planner, if an object configures one.
    """
    pools: dict[tuple[str, str], RunningPool] = {}  # by namespace and name
    for body in objects:
        for name, pool in _serving(body):
            pools[namespace_of(body), name] = pool
    scalers = sorted(filter(None, map(_scaler, objects)), key=lambda scaler: scaler.rank)
    for scaler in scalers:
        target = scaler.namespace, scaler.target
        if not scaler.namespace:  # the target may be in any namespace
            same_name = ((space, name) for space, name in pools if name == scaler.target)
            target = next(same_name, target)
        scaled = pools.get(target) or _pool_of_target(scaler)
        pools[target] = scaler.facts.filled_from(scaled)
    planners = [row for row in map(planner_row, objects) if row]
    if planners and not pools:
        pools["", "planner"] = RunningPool(name="planner", scaled=True)
    for key, pool in pools.items():
        if planners and not pool.triggers and not pool.autoscaler:
            pools[key] = replace(pool, autoscaler=planners[0], scaled=True)
    return list(pools.values())


def _pool_of_target(scaler: Scaler) -> RunningPool:
    """Return the pool of an autoscaler whose target is not among the objects.

    AIBrix gives a deployment the name of its model. Others may do so too.
    """
    pool = RunningPool(name=scaler.target)
    if scaler.target and (scaler.kind == "aibrix" or is_catalogue_model(scaler.target)):
        note = "its model is taken from the name of its target"
        return replace(pool, model=scaler.target, notes=(note,))
    return pool


def namespace_of(body: Body) -> str:
    """Return the namespace of an object, or ""."""
    return one_line(body, "metadata", "namespace")


def _serving(body: Body) -> Pools:
    """Yield (name by which it is scaled, pool) of each pool that an object describes."""
    reader = SERVING.get(one_line(body, "kind"))
    if reader is None:
        return
    name = one_line(body, "metadata", "name")
    for suffix, pool in reader(body):
        named_pool = replace(pool, name=f"{name}{suffix}")
        labels = _facts_of_labels(body, several_pools=bool(suffix))
        yield named_pool.name, labels.filled_from(named_pool)


def _workload(body: Body) -> Pools:
    """Yield the pool of a Deployment, StatefulSet or ReplicaSet that serves a model."""
    template = section(body, "spec", "template")
    if engine_containers(template):
        yield "", replace(pod_facts(template), replicas=_replicas(body))


def _leader_worker_set(body: Body) -> Pools:
    """Yield the pool of a LeaderWorkerSet, whose replica is a group of pods."""
    group = section(body, "spec", "leaderWorkerTemplate")
    size = whole_number(group, "size") or 1
    leader_template = section(group, "leaderTemplate")
    leader = worker = pod_facts(section(group, "workerTemplate"))
    if engine_containers(leader_template):
        leader = pod_facts(leader_template)
    gpus = (leader.gpus or 0) + (size - 1) * (worker.gpus or 0) or None
    pool = leader.filled_from(worker)
    # Without a launch line, all GPUs of the group share the model.
    tp = gpus if pool.tp is None else pool.tp
    yield "", replace(pool, gpus=gpus, tp=tp, replicas=_replicas(body))


def _inference_service(body: Body) -> Pools:
    """Yield the pool of KServe's InferenceService."""
    predictor = section(body, "spec", "predictor")
    model = section(predictor, "model")
    pod = {**predictor, "containers": predictor.get("containers") or ([model] if model else [])}
    pool = pod_facts({"spec": pod})
    least = whole_number(predictor, "minReplicas")
    most = whole_number(predictor, "maxReplicas")
    metric, target = one_line(predictor, "scaleMetric"), number(predictor, "scaleTarget")
    served = replace(
        pool,
        model=pool.model or model_of_path(one_line(model, "storageUri")),
        replicas=replica_count(predictor, "minReplicas"),
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
    name = one_line(model, "name") or model_of_path(one_line(model, "uri"))
    parts = {"": spec}
    if prefill := section(spec, "prefill"):
        parts["-prefill"] = prefill
    for suffix, part in parts.items():
        pod = pod_facts({"spec": section(part, "template")})
        degree, scaling = section(part, "parallelism"), section(part, "scaling")
        role = pod.role
        if prefill:
            role = "prefill" if suffix else "decode"
        declared = RunningPool(
            model=name,
            tp=whole_number(degree, "tensor"),
            pp=whole_number(degree, "pipeline"),
            dp=whole_number(degree, "data"),
            expert_parallel=True if degree.get("expert") else None,
            role=role,
            replicas=None if scaling else replica_count(part, "replicas"),
            minimum=whole_number(scaling, "minReplicas"),
            maximum=whole_number(scaling, "maxReplicas"),
            scaled=bool(scaling),
            triggers=keda_triggers(rows(scaling, "keda", "triggers")),
            notes=(*pod.notes, *cron_notes(rows(scaling, "keda", "triggers"))),
        )
        yield suffix, declared.filled_from(pod)


def _dynamo_graph(body: Body) -> Pools:
    """Yield the pools of a Dynamo graph, which a scaling adapter names GRAPH-COMPONENT."""
    spec = section(body, "spec")
    engine = one_line(spec, "backendFramework")
    parts = [(one_line(row, "name"), row) for row in rows(spec, "components")]
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
        facts = pod_facts(pod)
        gpus = _gpus(part) or facts.gpus
        nodes = whole_number(part, "multinode", "nodeCount") or 1
        worker = replace(
            facts,
            gpus=gpus and gpus * nodes,
            engine=facts.engine or engine,
            role=ROLES.get(kind, ""),
            replicas=replica_count(part, "replicas"),
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


def _replicas(body: Body) -> int:
    """Return the replicas that an object has now, or else those that it asks for."""
    running = whole_number(body, "status", "replicas")
    return replica_count(body, "spec", "replicas") if running is None else running


def _facts_of_labels(body: Body, *, several_pools: bool) -> RunningPool:
    """Return the facts about a pool in the labels and annotations that Headroom writes.

    ``several_pools``: the object has several pools, so only model and region are of each.
    """
    meta = section(body, "metadata")
    annotations, labels = section(meta, "annotations"), section(meta, "labels")

    def annotation(name: str) -> str:
        """Return the value of one of Headroom's annotations, or ""."""
        return one_line(annotations, f"{LABEL_PREFIX}/{name}")

    facts = RunningPool(
        model=annotation("model") or one_line(annotations, "llm-d.ai/model-id"),
        region=annotation("region") or one_line(labels, REGION_LABEL),
    )
    if several_pools:  # the other annotations are about one of them
        return facts
    gpus = whole_number(annotations, f"{LABEL_PREFIX}/gpus")
    role = annotation("role").replace("both", "mixed")
    return replace(facts, gpu=annotation("gpu"), gpus=gpus, tp=gpus, role=role)


def engine_containers(template: Body) -> list[Body]:
    """Return the containers in the ``template`` of a pod that serve a model; [] if none does.

    They have GPUs or the launch line of an engine. Without these, the image of an engine counts.
    """
    containers = rows(template, "spec", "containers")
    launched = [c for c in containers if _gpus(c) or LAUNCH.search(" ".join(_command(c)))]
    if launched:
        return launched
    with_engine = []
    for container in containers:
        image, name = one_line(container, "image"), one_line(container, "name")
        if engine_of_image(image) and "router" not in image and "router" not in name:
            with_engine.append(container)
    return with_engine


def pod_facts(template: Body) -> RunningPool:
    """Return the facts that the ``template`` of a pod states about its engine, as a pool."""
    spec, engines = section(template, "spec"), engine_containers(template)
    facts = _container_facts(engines[0]) if engines else RunningPool()
    gpu, note = _gpu_type_of(spec)
    role = one_line(template, "metadata", "labels", "llm-d.ai/role")
    return replace(
        facts,
        gpus=sum(_gpus(container) or 0 for container in engines) or None,
        gpu=gpu,
        role=facts.role or ROLES.get(role, ""),
        region=one_line(spec, "nodeSelector", REGION_LABEL),
        notes=(note,) if note else (),
    )


def _command(container: Body) -> list[str]:
    """Return the words of the command and the arguments of a container."""
    words: list[str] = []
    for part in (container.get("command"), container.get("args")):
        if isinstance(part, str):
            words.append(part)
        elif isinstance(part, list):
            words += map(str, part)
    return words


def _container_facts(container: Body) -> RunningPool:
    """Return the facts that a container's command, image and environment state, as a pool."""
    image = one_line(container, "image")
    engine = engine_of_image(image)
    variables = {one_line(row, "name"): one_line(row, "value") for row in rows(container, "env")}
    command = _command(container)
    scripts = [word for word in command if " " in word and LAUNCH.search(word)]
    facts = RunningPool(engine=engine)
    if scripts:
        exports = "".join(f"{name}={value}\n" for name, value in variables.items())
        launched = launch_pools(exports + scripts[0])
        facts = launched[0] if launched else RunningPool()
    elif LAUNCH.search(" ".join(command)) or (command and (engine or not image)):
        facts = engine_facts(command, variables, engine)
    stated_models = [variables[name] for name in MODEL_VARIABLES if variables.get(name)]
    return replace(
        facts,
        model=facts.model or model_of_path(stated_models[0] if stated_models else ""),
        engine_version=version_of_image(image) if facts.engine else "",
    )


def _gpus(container: Body) -> int | None:
    """Return the number of GPUs that a container requests; None if it requests none."""
    for kind in ("limits", "requests"):
        resources = section(container, "resources", kind)
        names = [name for name in resources if GPUS.match(str(name))]
        if gpus := sum(whole_number(resources, name) or 0 for name in names):
            return gpus
    return None


def _gpu_type_of(spec: Body) -> tuple[str, str]:
    """Return the GPU type of a pod's nodes, or ""; and a note, or "", if there are several."""
    values_by_label = {key: [value] for key, value in section(spec, "nodeSelector").items()}
    affinity = section(spec, "affinity", "nodeAffinity")
    suffix = "DuringSchedulingIgnoredDuringExecution"
    terms = rows(affinity, f"required{suffix}", "nodeSelectorTerms")
    terms += [section(row, "preference") for row in rows(affinity, f"preferred{suffix}")]
    for match in chain.from_iterable(rows(term, "matchExpressions") for term in terms):
        if match.get("operator", "In") == "In" and isinstance(match.get("values"), list):
            values_by_label.setdefault(one_line(match, "key"), list(match["values"]))
    types: dict[str, None] = {}  # a set in order of appearance
    for label, values in values_by_label.items():
        if GPU_LABELS.search(str(label)):
            for value in map(one_line, values):
                if value not in ("", "true", "nvidia", "gpu", "amd"):
                    types[gpu_type(value)] = None
    if len(types) > 1:
        return "", f"its pods may run on {', '.join(types)}. Name the GPU that they run on"
    return next(iter(types), ""), ""


def _scaler(body: Body) -> Scaler | None:
    """Return the autoscaler that an object describes; None if it describes none."""
    kind = one_line(body, "kind")
    if kind not in SCALERS:
        return None
    spec = section(body, "spec")
    rule, rank = SCALERS[kind]
    default_least, default_most = DEFAULT_BOUNDS.get(kind, (None, None))
    labels = _facts_of_labels(body, several_pools=False)
    annotations = section(body, "metadata", "annotations")
    paused_at = whole_number(annotations, f"{PAUSED_ANNOTATION}-replicas")
    is_paused = paused_at is not None or annotations.get(PAUSED_ANNOTATION) in ("true", True)
    replicas = paused_at
    if replicas is None:
        replicas = whole_number(body, "status", "currentReplicas")
    notes = ("its autoscaler is paused",) if is_paused else ()
    facts = replace(
        labels,
        model=labels.model or one_line(spec, "modelID"),
        # KEDA writes minReplicaCount, all others minReplicas.
        minimum=whole_number(spec.get("minReplicaCount", spec.get("minReplicas", default_least))),
        maximum=whole_number(spec.get("maxReplicaCount", spec.get("maxReplicas", default_most))),
        replicas=replicas,
        notes=(*cron_notes(rows(spec, "triggers")), *notes),
        scaled=True,
        triggers=_triggers(rule, spec),
        autoscaler=AUTOSCALERS[kind](body) if kind in AUTOSCALERS else None,
    )
    target = one_line(spec, "scaleTargetRef", "name") or one_line(body, "metadata", "name")
    return Scaler(target, namespace_of(body), rule, facts, rank)


def _triggers(rule: str, spec: Body) -> tuple[Trigger, ...]:
    """Return the triggers in the ``spec`` of an autoscaler; ``rule`` is its kind in SCALERS."""
    if rule == "keda":
        return keda_triggers(rows(spec, "triggers"))
    triggers = []
    if rule == "hpa":
        for row in rows(spec, "metrics"):
            kind = one_line(row, "type")
            part = section(row, kind[:1].lower() + kind[1:])
            metric = one_line(part, "metric", "name") or one_line(part, "name")
            target = section(part, "target")
            keys = ("averageValue", "value", "averageUtilization")
            key = next((key for key in keys if key in target), "")
            triggers.append(Trigger("hpa", metric, number(target, key), key != "value"))
    elif rule == "aibrix":
        for row in rows(spec, "metricsSources"):
            value = number(row, "targetValue")
            triggers.append(Trigger("aibrix", one_line(row, "targetMetric"), value))
    return tuple(triggers)


# By kind of object: the autoscaler, and its rank if several scale one object.
SCALERS = {
    "HorizontalPodAutoscaler": ("hpa", 1),
    "VariantAutoscaling": ("wva", 0),
    "PodAutoscaler": ("aibrix", 2),
    "ScaledObject": ("keda", 3),  # KEDA makes an HPA of its own for the same object
}


# Objects whose autoscaler has a policy of its own.
AUTOSCALERS = {"ScaledObject": scaled_object_row, "PodAutoscaler": pod_autoscaler_row}


def cron_notes(triggers: Sequence[Body]) -> tuple[str, ...]:
    """Return a note if KEDA's ``triggers`` include cron triggers, which are not imported."""
    if all(one_line(row, "type") != "cron" for row in triggers):
        return ()
    return (
        "its cron triggers are not imported, because a simulated autoscaler has one minimum for "
        "all hours. Add a periodic policy to simulate them",
    )


def keda_triggers(entries: Sequence[Body]) -> tuple[Trigger, ...]:
    """Return the load triggers among the triggers of a KEDA object, without cron triggers."""
    triggers = []
    for row in entries:
        meta, kind = section(row, "metadata"), one_line(row, "type")
        if kind == "cron":
            continue
        query = one_line(meta, "query")
        names = set(METRIC.findall(query))
        name = names.pop() if len(names) == 1 else query
        metric = one_line(meta, "metricName") or name or kind
        value = number(meta.get("threshold", meta.get("value", meta.get("targetValue"))))
        per_replica = one_line(row, "metricType") != "Value"
        triggers.append(Trigger("keda", metric, value, per_replica, query))
    return tuple(triggers)
