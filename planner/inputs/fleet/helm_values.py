"""Read values of serving charts (llm-d, vLLM's production stack) and Compose files."""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from planner.inputs.fleet.kubernetes import (
    cron_notes,
    engine_containers,
    keda_triggers,
    pod_facts,
)
from planner.inputs.fleet.launch_lines import engine_facts, model_of_path
from planner.inputs.fleet.pools import (
    RunningPool,
    Trigger,
    gpu_type,
    one_line,
    replica_count,
    rows,
    section,
    whole_number,
)

Body = Mapping[str, Any]
SATURATION = "epp pool saturation"  # what llm-d's endpoint picker scales by, if nothing is stated


def is_values(body: Body) -> bool:
    """Return whether a document is Helm or Compose values that this module can read."""
    return bool(
        body.get("scenario")
        or section(body, "services")
        or section(body, "servingEngineSpec")
        or section(body, "decode")
        or section(body, "prefill")
    )


def values_pools(body: Body) -> Iterator[RunningPool]:
    """Yield the pools of a document of values."""
    listed = body.get("scenario")
    if listed:
        for part in rows(listed) or [section(listed)]:
            yield from _llmd(part)
    elif section(body, "services"):
        yield from _compose(section(body, "services"))
    elif section(body, "servingEngineSpec"):
        yield from _production_stack(section(body, "servingEngineSpec"))
    else:
        yield from _llmd(body)


def _command_words(value: Any) -> list[str]:
    """Return the words of a command, which Compose takes as a text or a list."""
    if isinstance(value, list):
        return [str(word) for word in value]
    try:
        return shlex.split(one_line(value))
    except ValueError:  # an open quote
        return one_line(value).split()


def _compose(services: Body) -> Iterator[RunningPool]:
    """Yield the pools of a Compose file."""
    for name, body in services.items():
        service, deploy = section(body), section(body, "deploy")
        command = [
            word for key in ("entrypoint", "command") for word in _command_words(service.get(key))
        ]
        devices = rows(deploy, "resources", "reservations", "devices")
        gpus = sum(
            whole_number(device, "count") or len(_command_words(device.get("device_ids")))
            for device in devices
        )
        # Write the service as a pod, and read that.
        container = {
            "image": service.get("image"),
            "command": command,
            "resources": {"limits": {"gpu": gpus}} if gpus else {},
        }
        pod = {"spec": {"containers": [container]}}
        if engine_containers(pod):
            replicas = replica_count(deploy.get("replicas", service.get("scale")))
            yield replace(pod_facts(pod), name=str(name), replicas=replicas)


def _llmd(body: Body) -> Iterator[RunningPool]:
    """Yield the pools in values of llm-d's charts: decode, and prefill if it is enabled."""
    model, artifacts = section(body, "model"), section(body, "modelArtifacts")
    model_name = one_line(model.get("huggingfaceId") or model.get("name") or artifacts.get("name"))
    model_name = model_name or model_of_path(one_line(artifacts, "uri"))
    scaling = section(body, "eppKedaSaturation")
    enabled = _enabled_roles(body)
    for role, part in enabled.items():
        accelerator = section(part, "acceleratorType")
        stated = RunningPool(
            tp=whole_number(part, "parallelism", "tensor"),
            dp=whole_number(part, "parallelism", "data"),
            gpu=gpu_type(one_line(accelerator, "labelValue")) if accelerator else "",
        )
        pod = {**part, "containers": part.get("containers") or [part]}
        pool = stated.filled_from(pod_facts({"spec": pod}))
        pool = replace(
            pool,
            name=one_line(body.get("fullnameOverride") or body.get("name")),
            model=model_name or pool.model,
            role=role if len(enabled) > 1 else pool.role,
            replicas=replica_count(part, "replicas"),
        )
        if scaling.get("enabled") and role == "decode":  # which it scales
            pool = _picker_autoscaling(section(scaling, "scaledObject")).filled_from(pool)
        yield pool


def _enabled_roles(body: Body) -> dict[str, Body]:
    """Return the values of each role that runs; a standalone pool is one of decode alone."""
    standalone = section(body, "standalone")
    if standalone.get("enabled"):
        return {"decode": standalone}
    parts = {role: section(body, role) for role in ("prefill", "decode")}
    return {
        role: part
        for role, part in parts.items()
        if part
        and part.get("enabled", part.get("create", True))
        and whole_number(part, "replicas") != 0
    }


def _picker_autoscaling(scaled: Body) -> RunningPool:
    """Return a pool with the limits and triggers of llm-d's autoscaling (``scaled``)."""
    triggers = keda_triggers(
        [{"type": "prometheus", "metadata": row} for row in rows(scaled, "triggers")]
    )
    return RunningPool(
        minimum=whole_number(scaled, "minReplicas"),
        maximum=whole_number(scaled, "maxReplicas"),
        scaled=True,
        triggers=triggers or (Trigger("llm-d", SATURATION),),
    )


def _production_stack(spec: Body) -> Iterator[RunningPool]:
    """Yield the pools of vLLM's production stack."""
    for row in rows(spec, "modelSpec"):
        if row.get("enabled") is False:
            continue
        config = section(row, "vllmConfig")
        extra = [str(w) for w in config.get("extraArgs") or [] if not isinstance(w, Mapping)]
        facts = engine_facts(["vllm", "serve", *extra])
        terms = {"nodeSelectorTerms": row.get("nodeSelectorTerms")}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        pod = pod_facts({"spec": {"affinity": affinity, **row}})
        pool = replace(
            facts,
            name=one_line(row, "name"),
            model=model_of_path(one_line(row, "modelURL")) or facts.model,
            tp=whole_number(config, "tensorParallelSize") or facts.tp,
            pp=whole_number(config, "pipelineParallelSize") or facts.pp,
            gpus=whole_number(row, "requestGPU"),
            gpu=pod.gpu,
            engine="vllm",
            engine_version=one_line(row, "tag").removeprefix("v"),
            max_batch=whole_number(config, "maxNumSeqs") or facts.max_batch,
            replicas=replica_count(row, "replicaCount"),
        )
        yield _with_keda(pool, section(row, "keda"))


def _with_keda(pool: RunningPool, keda: Body) -> RunningPool:
    """Return the pool with the limits and triggers of its KEDA object, if that is enabled."""
    if not keda.get("enabled"):
        return pool
    triggers = rows(keda, "triggers")
    return replace(
        pool,
        minimum=whole_number(keda, "minReplicaCount"),
        maximum=whole_number(keda, "maxReplicaCount"),
        scaled=True,
        triggers=keda_triggers(triggers),
        notes=(*pool.notes, *cron_notes(triggers)),
    )
