"""What Kubernetes, KEDA and Prometheus' operator publish of the objects that the chart makes,
pruned to their fields.

``python -m tests.platform.kubernetes DEFINITIONS KEDA RULES`` writes it anew, after a field was
added to the chart: from `_definitions.json` of Kubernetes 1.37 as kubernetes-validate 1.37.0 (PyPI)
has it, `config/crd/bases/keda.sh_scaledobjects.yaml` of kedacore/keda @ 8b4f083c (2026-08-20), and
`example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml` of
prometheus-operator/prometheus-operator @ 01fad0d6 (0.82.2), all under the Apache License 2.0. Every
object is closed: a field that there is not fails here and not in a cluster.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("kubernetes.json")
FACTS = ("type", "enum", "minimum", "maximum", "minLength", "maxLength", "pattern", "required")
CRDS = (("keda.sh/v1alpha1", "ScaledObject"), ("monitoring.coreos.com/v1", "PrometheusRule"))
METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


def pruned(schema: dict[str, Any], samples: list[Any], whole: dict[str, Any]) -> dict[str, Any]:
    """The schema of ``samples``, without the fields that none of them has."""
    while "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    kept = {name: schema[name] for name in FACTS if name in schema}
    for either in ("oneOf", "anyOf"):  # a quantity, a port
        if either in schema:
            kept[either] = schema[either]
    if "items" in schema:
        inside = [item for one in samples for item in one]
        kept["items"] = pruned(schema["items"], inside, whole)
    elif "properties" in schema:
        names = sorted({name for one in samples for name in one})
        if unknown := set(names) - set(schema["properties"]):
            raise ValueError(f"{sorted(unknown)} are not in the schema")
        kept["additionalProperties"] = False
        kept["properties"] = {
            name: pruned(
                schema["properties"][name], [one[name] for one in samples if name in one], whole
            )
            for name in names
        }
    elif isinstance(further := schema.get("additionalProperties"), dict):
        values = [value for one in samples for value in one.values()]
        kept["additionalProperties"] = pruned(further, values, whole)
    return kept


def schemas(
    definitions: Path, crds: dict[tuple[str, str], Path], made: list[dict[str, Any]]
) -> dict[str, Any]:
    """By kind, of the objects that were ``made``."""
    from ruamel.yaml import YAML

    whole = json.loads(definitions.read_text(encoding="utf-8"))
    named = {}
    for (version, kind), path in crds.items():
        crd = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))["spec"]
        own = next(one for one in crd["versions"] if one["name"] == version.rpartition("/")[2])
        schema = own["schema"]["openAPIV3Schema"]
        schema["properties"]["metadata"] = {"$ref": f"#/$defs/{METADATA}"}
        named[version, kind] = schema
    for schema in whole["$defs"].values():
        for one in schema.get("x-kubernetes-group-version-kind", ()):
            version = "/".join(filter(None, (one["group"], one["version"])))
            named[version, one["kind"]] = schema
    found = {}
    for kind in sorted({one["kind"] for one in made}):
        samples = [one for one in made if one["kind"] == kind]
        (version,) = {one["apiVersion"] for one in samples}
        found[kind] = pruned(named[version, kind], samples, whole)
        found[kind]["properties"] |= {"apiVersion": {"const": version}, "kind": {"const": kind}}
        found[kind]["required"] = ["apiVersion", "kind", "metadata"]
    return found


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "planner.config.settings")
    import django

    django.setup()
    from tests.platform.test_chart import variants

    crds = dict(zip(CRDS, map(Path, sys.argv[2:]), strict=True))
    found = schemas(Path(sys.argv[1]), crds, list(variants()))
    PATH.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
