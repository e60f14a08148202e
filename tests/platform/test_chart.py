"""The Helm chart: what it makes of its values is what Kubernetes takes.

Helm itself need not be here: the templates keep to values, ``quote`` and ``if``, which these few
lines render as Helm does.
"""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from planner.models import Run
from tests.platform.kubernetes import PATH

CHART = Path(__file__).parents[2] / "docker/helm"
TAG = re.compile(r"\{\{-?\s*(.*?)\s*(-?)\}\}")
LINE = re.compile(r"^[ \t]*\{\{-\s*(if not|if|end)\s*(\S*)\s*\}\}[ \t]*\n", re.M)


def value(path, values):
    scope = {"Values": values, "Release": {"Name": "try"}}
    for name in path.strip(".").split("."):
        scope = scope[name]
    return scope


def rendered(text, values):
    """Blocks by ``if`` first."""
    out, kept = [], []  # kept: of each block around
    end = 0
    for tag in LINE.finditer(text):
        if all(kept):
            out.append(text[end : tag.start()])
        end = tag.end()
        kind, path = tag.groups()
        if kind == "end":
            kept.pop()
        else:
            kept.append(bool(value(path, values)) == (kind == "if"))
    assert not kept, "an if without its end"
    out.append(text[end:])

    def put(tag):
        path, *filters = (part.strip() for part in tag[1].split("|"))
        assert filters in ([], ["quote"]) and path.startswith("."), f"not told here: {tag[0]}"
        text = value(path, values)
        if filters:
            return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"') + '"'
        return str(text).lower() if isinstance(text, bool) else str(text)

    return TAG.sub(put, "".join(out))


def objects(**changes):
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path, changed in changes.items():
        section, key = path.split("__")
        values[section][key] = changed
    made = {}
    for path in sorted((CHART / "templates").glob("*.yaml")):
        for manifest in filter(None, yaml.safe_load_all(rendered(path.read_text(), values))):
            made[manifest["kind"], manifest["metadata"]["name"]] = manifest
    return made


def variants():
    """Every object of every block of the templates, with and without."""
    bucket = {"arrays__bucket": "s3://headroom/arrays", "arrays__url": "https://minio.example:9000"}
    more = {"keda__enabled": True, "ingress__enabled": True, "alerts__enabled": True}
    for changes in ({}, more, {"storage__class": "nfs"}, bucket, bucket | more):
        yield from objects(**changes).values()


def containers(made):
    for (kind, name), manifest in made.items():
        if kind in ("Deployment", "Job"):
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            yield name, manifest["spec"]["template"]["spec"], container


def test_what_a_chart_makes():
    made = objects()
    kinds = sorted(kind for kind, _ in made)
    assert kinds == ["ConfigMap", *["Deployment"] * 3, "Job", "PersistentVolumeClaim", "Service"]
    more = objects(
        keda__enabled=True, ingress__enabled=True, alerts__enabled=True, storage__class="nfs"
    )
    assert {kind for kind, _ in more} - set(kinds) == {"Ingress", "PrometheusRule", "ScaledObject"}
    assert more["PersistentVolumeClaim", "try-arrays"]["spec"]["storageClassName"] == "nfs"
    assert made["Deployment", "try-scheduler"]["spec"]["replicas"] == 1
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["apiVersion"], chart["type"]) == ("v2", "application")


def test_every_object_is_one_that_kubernetes_and_keda_take():
    """By their published schemas, in which a field that there is not is a fault."""
    schemas = json.loads(PATH.read_text(encoding="utf-8"))
    made = list(variants())
    assert {manifest["kind"] for manifest in made} == set(schemas)
    for manifest in made:
        faults = [
            fault.message
            for fault in Draft202012Validator(schemas[manifest["kind"]]).iter_errors(manifest)
        ]
        assert not faults, (manifest["kind"], manifest["metadata"]["name"], faults)


def test_an_object_that_is_none_is_a_fault():
    schemas = json.loads(PATH.read_text(encoding="utf-8"))
    made = objects(keda__enabled=True)
    for (kind, name), path, wrong in (
        (("Deployment", "try-web"), ("spec", "replica"), 2),
        (("Deployment", "try-web"), ("spec", "replicas"), "two"),
        (("Deployment", "try-web"), ("spec", "template", "spec", "containers", 0, "image"), 3),
        (("Service", "try-web"), ("spec", "ports", 0, "port"), "http"),
        (("ScaledObject", "try-worker"), ("spec", "triggers", 0, "type"), None),
        (("ConfigMap", "try-config"), ("data", "HEADROOM_HOSTS"), 1),
    ):
        spoiled = copy.deepcopy(made[kind, name])
        inside = spoiled
        for step in path[:-1]:
            inside = inside[step]
        inside[path[-1]] = wrong
        assert not Draft202012Validator(schemas[kind]).is_valid(spoiled), (kind, path)


def test_what_one_object_names_another_has():
    made = objects(keda__enabled=True, ingress__enabled=True)
    for name, pod, container in containers(made):
        assert pod["securityContext"]["runAsNonRoot"], name
        assert not container["securityContext"]["allowPrivilegeEscalation"], name
        for source in container["envFrom"]:
            config = source.get("configMapRef")
            assert config is None or ("ConfigMap", config["name"]) in made
        volumes = {
            volume["name"]: volume["persistentVolumeClaim"] for volume in pod.get("volumes", [])
        }
        for mount in container.get("volumeMounts", []):
            assert ("PersistentVolumeClaim", volumes[mount["name"]]["claimName"]) in made
    for kind, name in made:
        if kind == "Deployment":
            spec = made[kind, name]["spec"]
            labels = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"].items() <= labels.items()
    web = made["Deployment", "try-web"]["spec"]["template"]
    service = made["Service", "try-web"]["spec"]
    assert service["selector"].items() <= web["metadata"]["labels"].items()
    ports = {port["name"] for port in web["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= ports
    backend = made["Ingress", "try"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert ("Service", backend["name"]) in made
    assert backend["port"]["name"] in {port["name"] for port in service["ports"]}


def test_with_a_bucket_pods_have_a_folder_of_their_own():
    made = objects(arrays__bucket="s3://headroom/arrays", storage__class="nfs")
    assert not any(kind == "PersistentVolumeClaim" for kind, _ in made)
    assert made["ConfigMap", "try-config"]["data"]["HEADROOM_ARRAYS"] == "s3://headroom/arrays"
    for name, pod, container in containers(made):
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        for mount in container.get("volumeMounts", []):
            assert set(volumes[mount["name"]]) == {"name", "emptyDir"}, name


def test_workers_follow_the_runs_there_are():
    made = objects(keda__enabled=True)
    scaled = made["ScaledObject", "try-worker"]
    target = made["Deployment", scaled["spec"]["scaleTargetRef"]["name"]]
    assert "replicas" not in target["spec"]  # each upgrade would undo what KEDA said
    (trigger,) = scaled["spec"]["triggers"]
    assert set(trigger["metadata"]) == {"connectionFromEnv", "query", "targetQueryValue"}
    query = trigger["metadata"]["query"]
    assert f"FROM {Run._meta.db_table} WHERE state IN" in query
    assert set(re.findall(r"'(\w+)'", query)) == {Run.State.PENDING, Run.State.RUNNING}


@pytest.mark.django_db
def test_the_query_of_workers_counts_what_waits_and_runs():
    from django.db import connection

    Run.objects.bulk_create(Run(kind="plan", state=state) for state in Run.State)
    scaled = objects(keda__enabled=True)["ScaledObject", "try-worker"]
    with connection.cursor() as cursor:
        cursor.execute(scaled["spec"]["triggers"][0]["metadata"]["query"])
        assert cursor.fetchone() == (2,)


def test_commands_are_those_of_compose():
    """The same image by another way: what a container is started with is what compose starts."""
    compose = yaml.safe_load((CHART.parent / "compose.yaml").read_text())["services"]
    for name, _, container in containers(objects()):
        service = compose[name.removeprefix("try-")]
        assert container.get("command") == service.get("command"), name
