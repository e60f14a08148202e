"""What Kubernetes, KEDA and Prometheus' operator publish of the objects that the chart makes,
pruned to their fields.

``python -m tests.platform.kubernetes DEFINITIONS [KEDA RULES MONITORS]`` writes it anew, after a
field was added to the chart (the last three as they are, where left out): from
`_definitions.json` of Kubernetes 1.37 as kubernetes-validate 1.37.0 (PyPI) has it,
`config/crd/bases/keda.sh_scaledobjects.yaml` of kedacore/keda @ 8b4f083c (2026-08-20), and
`monitoring.coreos.com_prometheusrules.yaml` and `..._servicemonitors.yaml` in
`example/prometheus-operator-crd/` of prometheus-operator/prometheus-operator @ 01fad0d6 (0.82.2),
all under the Apache License 2.0. Every object is closed: a field that there is not fails here and
not in a cluster.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("kubernetes.json")
FACTS = ("type", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "required")
CRDS = (
    ("keda.sh/v1alpha1", "ScaledObject"),
    ("monitoring.coreos.com/v1", "PrometheusRule"),
    ("monitoring.coreos.com/v1", "ServiceMonitor"),
)
METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def pruned(
    schema: dict[str, Any], samples: list[Any], definitions: dict[str, Any]
) -> dict[str, Any]:
    """The schema of ``samples``, without the fields that none of them has."""
    while "$ref" in schema:
        schema = definitions["$defs"][schema["$ref"].rpartition("/")[2]]
    kept = {name: schema[name] for name in FACTS if name in schema}
    for either in ("oneOf", "anyOf"):  # a quantity, a port
        if either in schema:
            kept[either] = schema[either]
    if "items" in schema:
        inside = [item for sample in samples for item in sample]
        kept["items"] = pruned(schema["items"], inside, definitions)
    elif "properties" in schema:
        names = sorted({name for sample in samples for name in sample})
        if unknown := set(names) - set(schema["properties"]):
            raise ValueError(f"{sorted(unknown)} are not in the schema")
        kept["additionalProperties"] = False
        kept["properties"] = {
            name: pruned(
                schema["properties"][name],
                [sample[name] for sample in samples if name in sample],
                definitions,
            )
            for name in names
        }
    elif isinstance(further := schema.get("additionalProperties"), dict):
        values = [value for sample in samples for value in sample.values()]
        kept["additionalProperties"] = pruned(further, values, definitions)
    return kept


def schemas(
    definitions: Path, crds: dict[tuple[str, str], Path], made: list[dict[str, Any]]
) -> dict[str, Any]:
    """By kind, of the objects that were ``made``."""
    from ruamel.yaml import YAML

    document = json.loads(definitions.read_text(encoding="utf-8"))
    named = {}
    for (version, kind), path in crds.items():
        crd = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))["spec"]
        version_schema = next(
            served for served in crd["versions"] if served["name"] == version.rpartition("/")[2]
        )
        schema = version_schema["schema"]["openAPIV3Schema"]
        schema["properties"]["metadata"] = {"$ref": f"#/$defs/{METADATA}"}
        named[version, kind] = schema
    for schema in document["$defs"].values():
        for kind_of in schema.get("x-kubernetes-group-version-kind", ()):
            version = "/".join(filter(None, (kind_of["group"], kind_of["version"])))
            named[version, kind_of["kind"]] = schema
    by_kind = {}
    for kind in sorted({manifest["kind"] for manifest in made}):
        samples = [manifest for manifest in made if manifest["kind"] == kind]
        (version,) = {manifest["apiVersion"] for manifest in samples}
        by_kind[kind] = pruned(named[version, kind], samples, document)
        by_kind[kind]["properties"] |= {"apiVersion": {"const": version}, "kind": {"const": kind}}
        by_kind[kind]["required"] = ["apiVersion", "kind", "metadata"]
    return by_kind


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")
    import django

    django.setup()
    from tests.platform.test_chart import variants

    crds = dict(zip(CRDS, map(Path, sys.argv[2:]), strict=False))
    before = json.loads(PATH.read_text(encoding="utf-8"))
    kept = {kind: before[kind] for version, kind in CRDS if (version, kind) not in crds}
    made = [manifest for manifest in variants() if manifest["kind"] not in kept]
    pruned_schemas = schemas(Path(sys.argv[1]), crds, made) | kept
    PATH.write_text(json.dumps(pruned_schemas, indent=1, sort_keys=True) + "\n", encoding="utf-8")
