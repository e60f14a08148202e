"""The Helm chart: Kubernetes accepts what it makes of its values.

Helm itself need not be here: the templates keep to values, ``quote``, ``if`` and ``range``, which
these few lines render as Helm does.
"""

import copy
import json
import re
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator, Draft202012Validator

from planner.config.environment import worker_count
from planner.models import Run
from tests.platform.documentation import settings
from tests.platform.kubernetes import PATH

CHART = Path(__file__).parents[2] / "docker/helm"
# A block's tag takes its whole line; a value's stands within one.
TAG = re.compile(
    r"[ \t]*\{\{-\s*(?P<block>(?:if|range|end)\b[^}]*?)\s*\}\}[ \t]*\n"
    r"|\{\{\s*(?P<value>[^}]*?)\s*\}\}"
)
NUMBER = re.compile(r"([0-9.]+)(Mi|Gi)")
UNITS = {"Mi": 2**20, "Gi": 2**30}


def rendered(text, values):
    """The template's text for these values."""
    parts, end = [], 0
    for tag in TAG.finditer(text):
        parts += [text[end : tag.start()], tag]
        end = tag.end()
    parts.append(text[end:])
    scope = {"": {"Values": values, "Release": {"Name": "try"}}}
    rest = iter(parts)
    out = _block(rest, scope)
    assert next(rest, None) is None, "an end without its block"
    return out


def _block(parts, scope):
    """All up to this block's end."""
    out = ""
    for part in parts:
        if isinstance(part, str):
            out += part
        elif part["value"] is not None:
            path, *filters = (word.strip() for word in part["value"].split("|"))
            assert filters in ([], ["quote"]), f"not rendered here: {part[0]}"
            value = _value(path, scope)
            text = str(value).lower() if isinstance(value, bool) else str(value)
            out += json.dumps(text) if filters else text
        elif part["block"] == "end":
            return out
        else:
            inside = _until_end(parts)
            for names in _turns(part["block"], scope):
                out += _block(iter(inside), scope | names)
    return out


def _until_end(parts):
    inside, depth = [], 1
    for part in parts:
        inside.append(part)
        if not isinstance(part, str) and part["block"]:
            depth += -1 if part["block"] == "end" else 1
            if not depth:
                return inside
    raise AssertionError("a block without its end")


def _turns(block, scope):
    """What each turn of a block adds to the names."""
    kind, _, rest = block.partition(" ")
    if kind == "if":
        negated, path = rest.startswith("not "), rest.removeprefix("not ").strip()
        return [{}] if bool(_value(path, scope)) != negated else []
    names, _, path = rest.rpartition(":=")
    items = _value(path.strip(), scope)
    if names:
        key, value = (name.strip() for name in names.split(","))
        return [{key: k, value: items[k]} for k in sorted(items)]
    return [{"": item} for item in items]


def _value(path, scope):
    if path.startswith("$"):
        return scope[path]
    assert path.startswith("."), f"not rendered here: {path}"
    value = scope[""]
    for name in path.strip(".").split("."):
        value = value.get(name, "") if name.startswith("HEADROOM_") else value[name]
    return value


def objects(**changes):
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path, changed in changes.items():
        section, _, key = path.partition("__")
        if key:
            values[section][key] = changed
        else:
            values[section] = changed
    made = {}
    for path in sorted((CHART / "templates").glob("*.yaml")):
        for manifest in filter(None, yaml.safe_load_all(rendered(path.read_text(), values))):
            made[manifest["kind"], manifest["metadata"]["name"]] = manifest
    return made


def variants():
    """Every object of every block of the templates, with and without."""
    bucket = {
        "settings__HEADROOM_ARRAYS": "s3://headroom/arrays",
        "settings__HEADROOM_ARRAYS_URL": "https://minio.example:9000",
    }
    more = {"keda__enabled": True, "ingress__enabled": True, "alerts__enabled": True,
            "secretFiles": "headroom-files", "networkPolicy__fromNamespace": "ingress",
            "metrics__monitor": True}  # fmt: skip
    files = {"secret": "", "secretFiles": "headroom-files", "networkPolicy__egress": []}
    for changes in ({}, more, {"storage__class": "nfs"}, bucket, bucket | more, files):
        yield from objects(**changes).values()


def containers(made):
    for (kind, name), manifest in made.items():
        if kind in ("Deployment", "Job"):
            (container,) = manifest["spec"]["template"]["spec"]["containers"]
            yield name, manifest["spec"]["template"]["spec"], container


def test_what_a_chart_makes():
    made = objects()
    kinds = sorted(kind for kind, _ in made)
    assert kinds == [
        *["Deployment"] * 3, "Job", *["NetworkPolicy"] * 2, "PersistentVolumeClaim",
        *["PodDisruptionBudget"] * 2, "Service",
    ]  # fmt: skip
    more = objects(
        keda__enabled=True, ingress__enabled=True, alerts__enabled=True, storage__class="nfs"
    )
    assert {kind for kind, _ in more} - set(kinds) == {"Ingress", "PrometheusRule", "ScaledObject"}
    assert more["PersistentVolumeClaim", "try-arrays"]["spec"]["storageClassName"] == "nfs"
    assert made["Deployment", "try-scheduler"]["spec"]["replicas"] == 1
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["apiVersion"], chart["type"]) == ("v2", "application")


def test_prometheus_scrapes_the_service_with_a_token():
    made = objects(metrics__monitor=True, metrics__host="try-web")
    (endpoint,) = made["ServiceMonitor", "try"]["spec"]["endpoints"]
    service = made["Service", "try-web"]
    selected = made["ServiceMonitor", "try"]["spec"]["selector"]["matchLabels"]
    assert selected.items() <= service["metadata"]["labels"].items()
    (port,) = (p["port"] for p in service["spec"]["ports"] if p["name"] == endpoint["port"])
    assert endpoint["relabelings"][0]["replacement"] == f"{service['metadata']['name']}:{port}"
    assert endpoint["authorization"]["credentials"] == {"name": "headroom-metrics", "key": "token"}


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
        (("NetworkPolicy", "try"), ("spec", "policyTypes"), "Egress"),
        (("PodDisruptionBudget", "try-web"), ("spec", "maxUnavailble"), 1),
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
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for mount in container["volumeMounts"]:
            claim = volumes[mount["name"]].get("persistentVolumeClaim")
            assert claim is None or ("PersistentVolumeClaim", claim["claimName"]) in made, name
    pods = [
        manifest["spec"]["template"]["metadata"]["labels"]
        for (kind, _), manifest in made.items()
        if kind in ("Deployment", "Job")
    ]
    for (kind, name), manifest in made.items():
        if kind == "Deployment":
            labels = manifest["spec"]["template"]["metadata"]["labels"]
            assert manifest["spec"]["selector"]["matchLabels"].items() <= labels.items()
        elif kind in ("PodDisruptionBudget", "NetworkPolicy"):
            spec = manifest["spec"]
            wanted = (spec.get("selector") or spec["podSelector"])["matchLabels"].items()
            matches = [labels for labels in pods if wanted <= labels.items()]
            assert len(matches) == (len(pods) if name == "try" else 1), name
    web = made["Deployment", "try-web"]["spec"]["template"]
    service = made["Service", "try-web"]["spec"]
    assert service["selector"].items() <= web["metadata"]["labels"].items()
    ports = {port["name"] for port in web["spec"]["containers"][0]["ports"]}
    assert {port["targetPort"] for port in service["ports"]} <= ports
    backend = made["Ingress", "try"]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]
    assert ("Service", backend["name"]) in made
    assert backend["port"]["name"] in {port["name"] for port in service["ports"]}


def test_pods_have_no_rights_that_they_do_not_need():
    for name, pod, container in containers(objects(secretFiles="headroom-files")):
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False, name
        assert security["readOnlyRootFilesystem"] is True, name
        assert security["capabilities"] == {"drop": ["ALL"]}, name
        assert container["resources"]["limits"]["memory"], name
        writable = [m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")]
        assert sorted(writable) == ["/data", "/tmp"], name


def test_the_network_lets_in_the_site_alone_and_out_what_is_listed():
    made = objects(networkPolicy__egress=[{"cidr": "10.1.0.0/16", "port": 5432}])
    rules = made["NetworkPolicy", "try"]["spec"]
    assert "ingress" not in rules and set(rules["policyTypes"]) == {"Ingress", "Egress"}
    dns, database = rules["egress"]
    assert {(port["protocol"], port["port"]) for port in dns["ports"]} == {("UDP", 53), ("TCP", 53)}
    assert database["to"] == [{"ipBlock": {"cidr": "10.1.0.0/16"}}]
    assert database["ports"] == [{"protocol": "TCP", "port": 5432}]
    web = made["Deployment", "try-web"]["spec"]["template"]["spec"]["containers"][0]
    (site,) = made["NetworkPolicy", "try-web"]["spec"]["ingress"]
    assert [p["port"] for p in site["ports"]] == [p["containerPort"] for p in web["ports"]]
    assert "from" not in site
    (site,) = objects(networkPolicy__fromNamespace="ingress")["NetworkPolicy", "try-web"]["spec"][
        "ingress"
    ]
    labels = site["from"][0]["namespaceSelector"]["matchLabels"]
    assert labels == {"kubernetes.io/metadata.name": "ingress"}
    assert not any(kind == "NetworkPolicy" for kind, _ in objects(networkPolicy__enabled=False))


def test_every_documented_setting_reaches_every_pod():
    named = [name for name, place in settings().items() if place == "all"]
    values = {name.replace("...", "TOKEN"): f'{name} "quoted" \\' for name in named}
    for name, _, container in containers(objects(settings=values)):
        pairs = {entry["name"]: entry["value"] for entry in container["env"]}
        assert values.items() <= pairs.items(), name
        assert pairs.keys() - values.keys() <= {"HEADROOM_WORKER_READY"}, name
        assert container["envFrom"] == [{"secretRef": {"name": "headroom"}}], name


def test_secrets_may_be_mounted_files():
    made = objects(secret="", secretFiles="headroom-files")
    for name, pod, container in containers(made):
        assert "envFrom" not in container, name
        mount = next(m for m in container["volumeMounts"] if m["name"] == "secrets")
        assert (mount["mountPath"], mount["readOnly"]) == ("/run/secrets", True), name
        volume = next(v for v in pod["volumes"] if v["name"] == "secrets")
        assert volume["secret"]["secretName"] == "headroom-files", name
        assert pod["securityContext"]["fsGroup"], name  # who may read it


def test_values_that_the_chart_does_not_know_are_refused():
    """By Helm itself, which reads this schema: also those of an earlier version of the chart."""
    schema = Draft7Validator(json.loads((CHART / "values.schema.json").read_text()))
    good = yaml.safe_load((CHART / "values.yaml").read_text())
    schema.validate(good)
    for changes in (
        {"hosts": "headroom.example"},
        {"settings": {"HEADROOM_CACHE_BYTES": 40_000_000_000}},  # Helm would write 4e+10
        {"settings": {"hosts": "headroom.example"}},
        {"web": {"replicas": "two"}},
        {"networkPolicy": {"egress": [{"port": 443}]}},
    ):
        assert not schema.is_valid(good | changes), changes


def test_runs_fit_into_their_pod():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    number, unit = NUMBER.fullmatch(values["worker"]["memory"]).groups()
    concurrency = int(values["settings"]["HEADROOM_WORKER_CONCURRENCY"])
    wanted = int(values["settings"]["HEADROOM_MAX_RUN_MB"]) * worker_count(concurrency)
    assert 1_000_000 * wanted < float(number) * UNITS[unit]
    assert values["keda"]["runsPerPod"] == values["settings"]["HEADROOM_WORKER_CONCURRENCY"]


def test_with_a_bucket_pods_have_a_folder_of_their_own():
    made = objects(settings__HEADROOM_ARRAYS="s3://headroom/arrays", storage__class="nfs")
    assert not any(kind == "PersistentVolumeClaim" for kind, _ in made)
    for name, pod, _ in containers(made):
        for volume in pod["volumes"]:
            assert set(volume) == {"name", "emptyDir"}, name


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
    """The image's entry point starts both, and what it is given is what compose gives it."""
    compose = yaml.safe_load((CHART.parent / "compose.yaml").read_text())["services"]
    for name, _, container in containers(objects()):
        service = compose[name.removeprefix("try-")]
        assert "command" not in container and "entrypoint" not in service, name
        assert container.get("args") == service.get("command"), name
