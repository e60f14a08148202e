"""Check that exported objects are valid for the system that reads them.

The check applies the published schema, and rules that the schema does not hold: CEL of the CRDs,
webhooks and checks of controllers.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from planner.errors import PlannerError
from planner.outputs.object_names import LABEL

SCHEMAS = Path(__file__).parent / "schemas"
NAMES = ("hpa", "keda", "wva", "dynamo", "aibrix", "kserve", "llm-d")
INT32 = 2**31 - 1
WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CRON = re.compile(r"\d+ \d+ (\*|\d+) (\*|\d+) (\*|[\d,-]+)")

Body = Mapping[str, Any]  # a Kubernetes object, or an object in one


def check(schema: str, body: Body, name: str) -> None:
    """Raise PlannerError for the first fault of an object, by the rules of ``schema``.

    ``name`` is what the message calls the object.
    """
    for fault in faults(schema, body):
        raise PlannerError(
            f"The export of {name} is invalid for its reader ({fault}); nothing was "
            "written. Export to another format, and report this."
        )


def faults(schema: str, body: Body) -> Iterator[str]:
    """Yield the faults of an object as text, by the schema and the rules called ``schema``."""
    if schema in NAMES:
        for error in _validator(schema).iter_errors(dict(body)):
            yield f"{error.json_path}: {error.message}"
    for path, value in _integers_beyond_int32(body, "$"):
        yield f"{path}: {value} is no int32"
    if schema in RULES:
        yield from RULES[schema](body)


@cache
def _validator(name: str) -> Draft202012Validator:
    """Return the validator of the published schema called ``name``."""
    text = (SCHEMAS / f"{name}.json").read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))


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


def _range_fault(minimum: int, maximum: int) -> Iterator[str]:
    """Yield a fault if the minimum of replicas is above the maximum."""
    if minimum > maximum:
        yield f"at least {minimum} and at most {maximum} replicas"


def _repeated_name(names: list[Any], things: str) -> Iterator[str]:
    """Yield a fault if two ``things``, such as "triggers", have the same name."""
    if len(set(names)) < len(names):
        yield f"two {things} have the same name: {names}"


def _hpa(body: Body) -> Iterator[str]:
    """Yield the faults of a HorizontalPodAutoscaler."""
    spec = body["spec"]
    minimum = spec.get("minReplicas", 1)
    yield from _range_fault(minimum, spec["maxReplicas"])
    if minimum == 0:
        yield "$.spec.minReplicas: 0 needs HPAScaleToZero"
    yield from _behaviour(spec.get("behavior", {}))
    annotations = body["metadata"].get("annotations", {})
    is_managed = bool(annotations.get("llm-d.ai/managed"))
    if is_managed != bool(annotations.get("llm-d.ai/model-id")):
        yield "WVA needs both llm-d.ai/managed and llm-d.ai/model-id"


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
    yield from _range_fault(spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100))
    hpa_config = spec.get("advanced", {}).get("horizontalPodAutoscalerConfig", {})
    # KEDA derives this name, which is also the value of a label.
    hpa_name = hpa_config.get("name") or f"keda-hpa-{body['metadata']['name']}"
    if len(hpa_name) > LABEL:
        yield f"the autoscaler's name {hpa_name} has over {LABEL} characters"
    yield from _behaviour(hpa_config.get("behavior", {}))
    yield from _triggers(spec["triggers"])


def _triggers(triggers: Any) -> Iterator[str]:
    """Yield the faults of KEDA triggers, each a cron schedule or a Prometheus query."""
    yield from _repeated_name([trigger.get("name") for trigger in triggers], "triggers")
    for trigger in triggers:
        metadata = trigger["metadata"]
        not_text = [name for name, value in metadata.items() if not isinstance(value, str)]
        missing = {"serverAddress", "query", "threshold"} - metadata.keys()
        if not_text:
            yield f"metadata.{not_text[0]} is no text"
        elif trigger["type"] == "cron":
            yield from _cron(metadata)
        elif missing:
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
    names = [component["name"].lower() for component in body["spec"]["components"]]
    yield from _repeated_name(names, "components")
    if len(names) > 25:
        yield f"{len(names)} components, 25 at most"


def _aibrix(body: Body) -> Iterator[str]:
    """Yield the faults of an AIBrix PodAutoscaler: its limits, and schedules that overlap."""
    spec = body["spec"]
    schedules = spec.get("schedules", ())
    yield from _range_fault(spec.get("minReplicas", 1), spec["maxReplicas"])
    if not spec.get("metricsSources"):
        yield "$.spec.metricsSources: at least one"
    yield from _repeated_name([schedule["name"] for schedule in schedules], "schedules")
    times_by_day: dict[str, list[tuple[str, str]]] = {}
    for schedule in schedules:
        name, start, end = schedule["name"], schedule["startTime"], schedule["endTime"]
        if start >= end:  # AIBrix schedules may not cross midnight
            yield f"{name}: from {start} to {end}"
        if schedule.get("minReplicas", 0) > schedule.get("maxReplicas", INT32):
            yield f"{name}: the minimum is above the maximum"
        if schedule.get("maxReplicas", 1) < 1:
            yield f"{name}: maxReplicas below 1"
        for day in schedule.get("daysOfWeek", WEEKDAYS):
            times = schedule["startTime"], schedule["endTime"]
            times_by_day.setdefault(day, []).append(times)
    for day, times_of_day in times_by_day.items():
        if _overlap(sorted(times_of_day)):
            yield f"schedules of {day} overlap"


def _overlap(times: Sequence[tuple[str, str]]) -> bool:
    """Return whether a time ends after the next one begins; ``times`` are by start."""
    return any(end > next_start for (_, end), (next_start, _) in pairwise(times))


def _kserve(body: Body) -> Iterator[str]:
    """Yield the faults of an LLMInferenceService."""
    spec = body["spec"]
    for role in (spec, spec.get("prefill", {})):
        scaling = role.get("scaling")
        if scaling is None:
            continue
        if "replicas" in role:
            yield "replicas and scaling are mutually exclusive"
        yield from _range_fault(scaling.get("minReplicas", 1), scaling["maxReplicas"])
        yield from _triggers(scaling["keda"]["triggers"])


def _dynamo_planner(body: Body) -> Iterator[str]:
    """Yield the faults of a PlannerConfig, by the validators of ai-dynamo 1.6."""
    config = YAML(typ="safe", pure=True).load(body["data"]["planner.yaml"])
    target = config["optimization_target"]
    if target not in ("throughput", "latency", "load", "sla"):
        yield f"optimization_target: {target}"
    for up, down in (("prefill_scale_up_queue_tokens", "prefill_scale_down_queue_tokens"),
                     ("decode_scale_up_kv_rate", "decode_scale_down_kv_rate")):  # fmt: skip
        if up in config and not config[down] < config[up]:
            yield f"{up}: {config[up]} is not above {config[down]}"
    if config.get("enable_power_awareness") and config["mode"] != "disagg":
        yield "enable_power_awareness: needs prefill and decode"
    if config.get("ttft_ms", 1) <= 0 or config.get("itl_ms", 1) <= 0:
        yield "ttft_ms and itl_ms are above 0"


def _wva(body: Body) -> Iterator[str]:
    """Yield a fault if a VariantAutoscaling has a minimum above its maximum."""
    spec = body["spec"]
    yield from _range_fault(spec.get("minReplicas", 1), spec["maxReplicas"])


def _deferrable_work(body: Body) -> Iterator[str]:
    """Yield the faults of the hours of deferrable work: periods without length, and overlaps."""
    for csv_text in body["data"].values():
        periods_by_model: dict[str, list[tuple[str, str]]] = {}
        _, *lines = csv_text.splitlines()  # below the head
        for line in lines:
            begins, ends, model, tokens = line.split(",")
            if begins >= ends or int(tokens) < 0:
                yield line
            periods_by_model.setdefault(model, []).append((begins, ends))
        for model, periods in periods_by_model.items():
            if _overlap(periods):
                yield f"periods of {model} overlap"


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
    for name in sorted(spec.keys() - known):
        yield f"$.spec.{name}: unknown field"


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
