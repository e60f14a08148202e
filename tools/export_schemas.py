"""Prune published schemas to what exports write: ``python -m tools.export_schemas FOLDER``.

FOLDER has the schemas as published (CRDs, JSON Schemas). This file lists what is kept of each.
Every object is closed. Kubernetes' rules for metadata are added, since CRDs leave metadata open.
The results are in planner/outputs/schemas, with source, commit and licence in each file.
"""

import json
import sys
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

OUT = Path(__file__).parents[1] / "planner/outputs/schemas"
Schema = dict[str, Any]
# Keywords of a schema that are kept; descriptions and defaults are not.
KEPT = ("type", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "minItems",
        "maxItems", "required", "anyOf", "additionalProperties")  # fmt: skip
ALL: dict[str, Any] = {}  # keep all of an object with free keys, or of a value
POLICIES = {"type": ALL, "value": ALL, "periodSeconds": ALL}
WAY = {"stabilizationWindowSeconds": ALL, "tolerance": ALL, "policies": POLICIES}
BEHAVIOUR = {"scaleUp": WAY, "scaleDown": WAY}
TARGET = {"apiVersion": ALL, "kind": ALL, "name": ALL}
TRIGGER = {"type": ALL, "name": ALL, "metricType": ALL, "metadata": ALL}
METRIC = {"name": ALL, "selector": {"matchLabels": ALL}}
VALUE = {"type": ALL, "averageValue": ALL}
ROLE = {"parallelism": {"tensor": ALL}, "scaling": {
    "minReplicas": ALL, "maxReplicas": ALL, "keda": {
        "pollingInterval": ALL,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": BEHAVIOUR}},
        "triggers": TRIGGER,
    },
}}  # fmt: skip
# Name of our file: name of the published file, its version, and the kept parts of spec.
CRDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "keda": ("keda_scaledobject.crd.yaml", "v1alpha1", {
        "scaleTargetRef": TARGET, "pollingInterval": ALL, "minReplicaCount": ALL,
        "maxReplicaCount": ALL, "triggers": TRIGGER,
        "advanced": {
            "horizontalPodAutoscalerConfig": {"name": ALL, "behavior": BEHAVIOUR},
            "scalingModifiers": {"formula": ALL, "target": ALL, "metricType": ALL},
        },
    }),
    "wva": ("wva_variantautoscaling.crd.yaml", "v1alpha1", {
        "scaleTargetRef": TARGET, "modelID": ALL, "variantCost": ALL, "minReplicas": ALL,
        "maxReplicas": ALL,
    }),
    "dynamo": ("dynamo_graphdeployment.crd.yaml", "v1beta1", {
        "components": {"name": ALL, "type": ALL, "replicas": ALL, "scalingAdapter": ALL},
    }),
    "aibrix": ("aibrix_podautoscaler.crd.yaml", "v1alpha1", {
        "scalingStrategy": ALL, "observeWindowSeconds": ALL, "panicWindowSeconds": ALL,
        "minReplicas": ALL, "maxReplicas": ALL, "scaleTargetRef": TARGET,
        "metricsSources": {"metricSourceType": ALL, "protocolType": ALL, "port": ALL, "path": ALL,
                           "targetMetric": ALL, "targetValue": ALL},
        "schedules": {"name": ALL, "timezone": ALL, "daysOfWeek": ALL, "startTime": ALL,
                      "endTime": ALL, "minReplicas": ALL, "maxReplicas": ALL},
    }),
    "kserve": ("kserve_llminferenceservice.crd.yaml", "v1alpha2", {**ROLE, "prefill": ROLE}),
}  # fmt: skip
HPA = {"scaleTargetRef": TARGET, "minReplicas": ALL, "maxReplicas": ALL, "behavior": BEHAVIOUR,
       "metrics": {"type": ALL, "external": {"metric": METRIC, "target": VALUE},
                   "pods": {"metric": METRIC, "target": VALUE}}}  # fmt: skip
HPA_SOURCE = (
    "Source: kubernetes/kubernetes api/openapi-spec/v3/apis__autoscaling__v2_openapi.json of 1.35, "
    "from its copy in kubernetes-sigs/kubectl-validate @ a97ccfaca20b164819afdae780392496f6ed6bbd "
    "(2026-01-05), Apache-2.0."
)
SERVER = {"create": ALL, "replicas": ALL, "parallelism": {"tensor": ALL}}
VALUES = {"fullnameOverride": ALL, "multinode": ALL, "decode": SERVER, "prefill": SERVER}
NAME = {"type": "string", "maxLength": 63, "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}
LABEL = {"type": "string", "maxLength": 63,
         "pattern": "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$"}  # fmt: skip
METADATA = {
    "type": "object", "required": ["name"], "additionalProperties": False,
    "properties": {
        "name": NAME, "namespace": NAME,
        "labels": {"type": "object", "additionalProperties": LABEL},
        "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}  # fmt: skip


def reduced_schemas(folder: Path) -> dict[str, Schema]:
    """Return the published schemas in ``folder`` by name, reduced to what exports use."""
    schemas = {
        name: _of_crd(folder / file, version, keep) for name, (file, version, keep) in CRDS.items()
    }
    file = folder / "hpa_autoscaling_v2.schema.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    spec = _reduce_schema(
        _follow_references(document, document)["properties"]["spec"], HPA, document
    )
    schemas["hpa"] = _object("autoscaling", "v2", "HorizontalPodAutoscaler", spec) | {
        "$comment": HPA_SOURCE
    }
    file = folder / "llmd_modelservice.values.schema.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    schemas["llm-d"] = _reduce_schema(document, VALUES, document) | {
        "$comment": document["$comment"]
    }
    return schemas


def _of_crd(path: Path, version: str, keep: Mapping[str, Any]) -> Schema:
    """Return the schema of one ``version`` in a CRD, with the parts of ``spec`` in ``keep``.

    The comment at the head of the file becomes the source.
    """
    text = path.read_text(encoding="utf-8")
    spec = YAML(typ="safe", pure=True).load(text)["spec"]
    served = next(each for each in spec["versions"] if each["name"] == version)
    schema = served["schema"]["openAPIV3Schema"]
    kept = _reduce_schema(schema["properties"]["spec"], keep, schema)
    head = takewhile(lambda line: line.startswith("#"), text.splitlines())
    source = " ".join(line.strip("# ") for line in head)
    return _object(spec["group"], version, spec["names"]["kind"], kept) | {"$comment": source}


def _object(group: str, version: str, kind: str, spec: Schema) -> Schema:
    """Return the closed schema of a Kubernetes object of this kind, with the schema ``spec``."""
    return {
        "type": "object", "required": ["apiVersion", "kind", "metadata", "spec"],
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"const": f"{group}/{version}"}, "kind": {"const": kind},
            "metadata": METADATA, "spec": spec,
        },
    }  # fmt: skip


def _reduce_schema(schema: Schema, keep: Mapping[str, Any], root: Schema) -> Any:
    """Return the parts of a schema that ``keep`` names, with no others allowed.

    For an array, they are those of its items. ``root`` is the document to which references refer.
    Raises ValueError if a named part does not exist, or if a required one is not named.
    """
    schema = _follow_references(schema, root)
    if "items" in schema:
        return _keywords(schema) | {"items": _reduce_schema(schema["items"], keep, root)}
    properties = schema.get("properties", {})
    if not keep or not properties:
        if unknown := set(keep) - set(properties):
            raise ValueError(f"{sorted(unknown)} are not in the schema")
        return _keywords(schema)
    if missing := set(schema.get("required", ())) - keep.keys():
        raise ValueError(f"{sorted(missing)} are needed, and not kept")
    parts = {name: _reduce_schema(properties[name], below, root) for name, below in keep.items()}
    return _keywords(schema) | {"additionalProperties": False, "properties": parts}


def _follow_references(schema: Schema, root: Schema) -> Schema:
    """Return the schema behind references, which OpenAPI wraps in an allOf with one item."""
    while "$ref" in schema or len(schema.get("allOf", ())) == 1:
        if "allOf" in schema:
            schema = schema["allOf"][0]
            continue
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part.replace("~1", "/")]
        schema = target
    return schema


def _keywords(schema: Schema) -> Schema:
    """Return the keywords of a schema that are kept, without its properties and items."""
    return {name: schema[name] for name in KEPT if name in schema}


def text_of(schema: Schema) -> str:
    """Return the text of our file; its comment states the source and the changes."""
    source = schema["$comment"].replace(" Unmodified.", "").rstrip(". ")
    schema = schema | {"$comment": f"{source}. Pruned to what exports write, objects closed."}
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    OUT.mkdir(exist_ok=True)
    for name, schema in reduced_schemas(Path(sys.argv[1])).items():
        (OUT / f"{name}.json").write_text(text_of(schema), encoding="utf-8")
