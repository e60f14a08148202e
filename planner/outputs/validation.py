"""Check that exported objects are valid for the system that reads them.

The check applies the published schema, and rules that the schema does not hold: CEL of the CRDs,
webhooks and checks of controllers.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from planner.errors import PlannerError

SCHEMAS = Path(__file__).parent / "schemas"
NAMES = ("hpa", "keda", "wva", "dynamo", "aibrix", "kserve", "llm-d")
INT32 = 2**31 - 1
_CRON = re.compile(r"\d+ \d+ (\*|\d+) (\*|\d+) (\*|[\d,-]+)")

Body = Mapping[str, Any]  # a Kubernetes object


def check(schema: str, body: Body, called: str) -> None:
    """Raise PlannerError for the first fault of an object, by the rules of ``schema``."""
    fault = next(faults(schema, body), None)
    if fault is not None:
        raise PlannerError(
            f"The export of {called} is invalid for its reader ({fault}); nothing was "
            "written. Export to another format, and report this."
        )


def faults(schema: str, body: Body) -> Iterator[str]:
    """Yield the faults of an object as text, by the schema and the rules called ``schema``."""
    if schema in NAMES:
        for error in _validator(schema).iter_errors(dict(body)):
            yield f"{error.json_path}: {error.message}"
    yield from (f"{path}: {value} is no int32" for path, value in _integers_beyond_int32(body, "$"))
    if schema in RULES:
        yield from RULES[schema](body)


@cache
def _validator(name: str) -> Draft202012Validator:
    """Return the validator of the published schema called ``name``."""
    return Draft202012Validator(json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8")))


def _integers_beyond_int32(value: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yield the integers in ``value`` that need more than 32 bits, each with its JSON path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _integers_beyond_int32(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _integers_beyond_int32(item, f"{path}[{i}]")
    # bool is a subclass of int.
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > INT32:
        yield path, value


def _check_order(least: int, most: int) -> Iterator[str]:
    """Yield a fault if the minimum of replicas is above the maximum."""
    if least > most:
        yield f"at least {least} and at most {most} replicas"


def _hpa(body: Body) -> Iterator[str]:
    """Yield the faults of a HorizontalPodAutoscaler."""
    spec = body["spec"]
    yield from _check_order(spec.get("minReplicas", 1), spec["maxReplicas"])
    if spec.get("minReplicas") == 0:
        yield "$.spec.minReplicas: 0 needs HPAScaleToZero"
    yield from _behaviour(spec.get("behavior", {}))
    if bool(_annotation(body, "llm-d.ai/managed")) != bool(_annotation(body, "llm-d.ai/model-id")):
        yield "WVA needs both llm-d.ai/managed and llm-d.ai/model-id"


def _annotation(body: Body, name: str) -> str:
    """Return the value of an annotation; "" without it."""
    return str(body["metadata"].get("annotations", {}).get(name, ""))


def _behaviour(behaviour: Body) -> Iterator[str]:
    """Yield the faults of an HPA ``behavior``: rules of scaleUp and scaleDown out of range."""
    for direction, rules in behaviour.items():
        if not 0 <= rules.get("stabilizationWindowSeconds", 0) <= 3600:
            yield f"behavior.{direction}.stabilizationWindowSeconds is 0 to 3600"
        for policy in rules.get("policies", ()):
            if not 1 <= policy["periodSeconds"] <= 1800 or policy["value"] < 1:
                yield f"behavior.{direction}.policies: {policy}"


def _keda(body: Body) -> Iterator[str]:
    """Yield the faults of a ScaledObject."""
    spec = body["spec"]
    yield from _check_order(spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100))
    config = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    # KEDA derives this name, which is also the value of a label.
    called = config.get("name") or f"keda-hpa-{body['metadata']['name']}"
    if len(called) > 63:
        yield f"the autoscaler's name {called} has over 63 characters"
    yield from _behaviour(config.get("behavior", {}))
    yield from _triggers(spec["triggers"])


def _triggers(triggers: Any) -> Iterator[str]:
    """Yield the faults of KEDA triggers, each a cron schedule or a Prometheus query."""
    names = [trigger.get("name") for trigger in triggers]
    if len(set(names)) < len(names):
        yield f"two triggers have the same name: {names}"
    for trigger in triggers:
        metadata = trigger["metadata"]
        if wrong := [name for name, value in metadata.items() if not isinstance(value, str)]:
            yield f"metadata.{wrong[0]} is no text"
        elif trigger["type"] == "cron":
            yield from _cron(metadata)
        elif missing := {"serverAddress", "query", "threshold"} - metadata.keys():
            yield f"metadata: {sorted(missing)} are missing"


def _cron(metadata: Mapping[str, str]) -> Iterator[str]:
    """Yield the faults of a cron trigger."""
    if missing := {"timezone", "start", "end", "desiredReplicas"} - metadata.keys():
        yield f"metadata: {sorted(missing)} are missing"
        return
    for name in ("start", "end"):
        if not _CRON.fullmatch(metadata[name]):
            yield f"metadata.{name}: {metadata[name]} is no cron of five fields"
    # KEDA treats equal start and end as an empty window.
    if metadata["start"] == metadata["end"]:
        yield f"metadata: start and end are both {metadata['start']}"
    if metadata["timezone"] not in available_timezones():
        yield f"metadata.timezone: {metadata['timezone']} is no IANA zone"
    if not metadata["desiredReplicas"].isdecimal() or int(metadata["desiredReplicas"]) == 0:
        yield f"metadata.desiredReplicas: {metadata['desiredReplicas']}"


def _dynamo(body: Body) -> Iterator[str]:
    """Yield the faults of a Dynamo graph."""
    components = body["spec"]["components"]
    names = [component["name"].lower() for component in components]
    if len(set(names)) < len(names):
        yield f"two components have the same name: {names}"
    if len(names) > 25:
        yield f"{len(names)} components, 25 at most"


def _aibrix(body: Body) -> Iterator[str]:
    """Yield the faults of an AIBrix PodAutoscaler: its limits, and schedules that overlap."""
    spec = body["spec"]
    yield from _check_order(spec.get("minReplicas", 1), spec["maxReplicas"])
    if not spec.get("metricsSources"):
        yield "$.spec.metricsSources: at least one"
    times_by_day: dict[str, list[tuple[str, str]]] = {}
    for schedule in spec.get("schedules", ()):
        # AIBrix schedules may not cross midnight.
        if schedule["startTime"] >= schedule["endTime"]:
            yield f"{schedule['name']}: from {schedule['startTime']} to {schedule['endTime']}"
        if schedule.get("minReplicas", 0) > schedule.get("maxReplicas", INT32):
            yield f"{schedule['name']}: the minimum is above the maximum"
        if schedule.get("maxReplicas", 1) < 1:
            yield f"{schedule['name']}: maxReplicas below 1"
        for day in schedule.get("daysOfWeek", ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")):
            times_by_day.setdefault(day, []).append((schedule["startTime"], schedule["endTime"]))
    for day, times in times_by_day.items():
        times.sort()
        if any(end > next_start for (_, end), (next_start, _) in pairwise(times)):
            yield f"schedules of {day} overlap"
    names = [schedule["name"] for schedule in spec.get("schedules", ())]
    if len(set(names)) < len(names):
        yield "two schedules have the same name"


def _kserve(body: Body) -> Iterator[str]:
    """Yield the faults of an LLMInferenceService."""
    spec = body["spec"]
    for role in (spec, spec.get("prefill", {})):
        scaling = role.get("scaling")
        if scaling is None:
            continue
        if "replicas" in role:
            yield "replicas and scaling are mutually exclusive"
        yield from _check_order(scaling.get("minReplicas", 1), scaling["maxReplicas"])
        yield from _triggers(scaling["keda"]["triggers"])


def _dynamo_planner(body: Body) -> Iterator[str]:
    """Yield the faults of a PlannerConfig, by the validators of ai-dynamo 1.6."""
    config = YAML(typ="safe", pure=True).load(body["data"]["planner.yaml"])
    is_disaggregated = config["mode"] == "disagg"
    if config["optimization_target"] not in ("throughput", "latency", "load", "sla"):
        yield f"optimization_target: {config['optimization_target']}"
    for up, down in (("prefill_scale_up_queue_tokens", "prefill_scale_down_queue_tokens"),
                     ("decode_scale_up_kv_rate", "decode_scale_down_kv_rate")):  # fmt: skip
        if up in config and not config[down] < config[up]:
            yield f"{up}: {config[up]} is not above {config[down]}"
    if config.get("enable_power_awareness") and not is_disaggregated:
        yield "enable_power_awareness: needs prefill and decode"
    if any(config.get(key, 1) <= 0 for key in ("ttft_ms", "itl_ms")):
        yield "ttft_ms and itl_ms are above 0"


def _wva(body: Body) -> Iterator[str]:
    """Yield a fault if a VariantAutoscaling has a minimum above its maximum."""
    yield from _check_order(body["spec"].get("minReplicas", 1), body["spec"]["maxReplicas"])


def _deferrable_work(body: Body) -> Iterator[str]:
    """Yield the faults of the hours of deferrable work: periods without length, and overlaps."""
    for text in body["data"].values():
        _, *lines = text.splitlines()  # a CSV with its head
        by_model: dict[str, list[tuple[str, str]]] = {}
        for line in lines:
            begins, ends, model, tokens = line.split(",")
            if begins >= ends or int(tokens) < 0:
                yield line
            by_model.setdefault(model, []).append((begins, ends))
        for periods in by_model.values():
            for (_, ends), (next_begins, _) in pairwise(periods):
                if next_begins < ends:
                    yield f"{next_begins} is before {ends}"


def _model_claim(body: Body) -> Iterator[str]:
    """Yield where a ModelClaim breaks its CRD: required fields, the engine, and one replica."""
    spec = body.get("spec", {})
    for field in ("artifactURL", "podSelector"):
        if not spec.get(field):
            yield f"$.spec.{field}: it is required"
    for field in ("maximumFootprint", "kvFloor"):
        if not re.fullmatch(r"[1-9]\d*Mi", spec.get("perGPU", {}).get(field, "")):
            yield f"$.spec.perGPU.{field}: it is required, above 0"
    if "--gpu-memory-utilization" in spec.get("engineConfig", {}).get("args", {}):
        yield "$.spec.engineConfig.args: kvcached sets the memory of an engine"
    if spec.get("engine", "vllm") not in ("vllm", "sglang"):
        yield f"$.spec.engine: {spec['engine']} is not vllm or sglang"
    if spec.get("replicas", 1) != 1:
        yield "$.spec.replicas: a claim has one replica"
    known = {"artifactURL", "engine", "engineConfig", "modelName", "perGPU", "podSelector",
             "replicas"}  # fmt: skip
    yield from (f"$.spec.{name}: unknown field" for name in sorted(spec.keys() - known))


RULES: dict[str, Callable[[Body], Iterator[str]]] = {
    "hpa": _hpa,
    "keda": _keda,
    "wva": _wva,
    "dynamo": _dynamo,
    "dynamo-planner": _dynamo_planner,
    "aibrix": _aibrix,
    "deferrable-work": _deferrable_work,
    "kserve": _kserve,
    "ModelClaim": _model_claim,
}
