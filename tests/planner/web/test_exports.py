"""The export page: choices, the file, refusals beside the choices, and the plan in force."""

import pytest
import yaml

from planner.models import ActivePlan, Run, User
from planner.selectors.runs import stored_result
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in, text_of
from tests.planner.web.study import completed_run


@pytest.fixture
def run(planner) -> Run:
    run = completed_run(planner)
    replica = {"model": "llama", "gpu": "H100", "tp": 1, "role": "mixed", "market": "owned",
               "arrangement": "1 x H100"}  # fmt: skip
    run.result["recommended"] = {
        "policy": "lt-i", "label": "Planned", "sentence": "Run it.",
        "timetable": {
            "pools": [{"region": "east", "replica": replica}],
            "rows": [{"begins": f"2024-05-18T{hour:02}:00:00Z", "replicas": [count]}
                     for hour, count in ((0, 2), (8, 5))],
            "by_itself": False,
        },
    }  # fmt: skip
    run.save()
    return run


def test_a_file_as_chosen_or_a_sentence_beside_the_choices(run, viewer):
    client, url = signed_in(viewer), f"/runs/{run.pk}/export/"
    page = client.get(url)
    assert page.status_code == 200 and "llama-h100-east" in text_of(page)
    assert b'value="keda" selected' in page.content and b"click, load" in page.content
    assert url in client.get(f"/runs/{run.pk}/").content.decode()
    chosen = {"to": "keda", "repeat": "weekly", "timezone": "Europe/Berlin", "region": "east",
              "names": "llama-h100-east=chat", "policy": "", "at": "", "namespace": "llm",
              }  # fmt: skip
    file = client.get(url, chosen)
    assert file["Content-Disposition"] == f'attachment; filename="run-{run.pk}-keda.yaml"'
    body = yaml.safe_load(file.content)
    assert body["metadata"]["name"] == "chat" and body["metadata"]["namespace"] == "llm"
    (trigger,) = body["spec"]["triggers"]  # 10:00 in Berlin until 02:00, on every day alike
    assert (trigger["metadata"]["start"], trigger["metadata"]["end"]) == ("0 10 * * *", "0 2 * * *")
    refused = client.get(url, chosen | {"timezone": "Mars"})
    assert refused.status_code == 400
    assert "Time zone Mars: give an IANA time zone" in text_of(refused)
    assert b'value="Mars"' in refused.content  # what was typed is still there
    assert client.get(url, {"to": "pdf"}).content.startswith(b"%PDF-")


def test_the_deployments_are_those_of_the_chosen_policy(run, viewer):
    client, url = signed_in(viewer), f"/runs/{run.pk}/export/"
    assert client.get(url).context["plan"].policy == "lt-i"
    for policy in stored_result(run).labels:
        shown = client.get(url, {"policy": policy}).context["plan"]
        assert shown is None or shown.policy == policy


def test_names_are_kept_for_every_export(run, planner, viewer):
    url, client = f"/runs/{run.pk}/names/", signed_in(planner)
    client.post(url, {"llama-h100-east": "chat"})
    page = signed_in(viewer).get(f"/runs/{run.pk}/export/")
    assert "chat" in text_of(page)
    export = {"to": "keda", "repeat": "daily"}
    for service, name in (("", "chat"), ("llama-h100-east=other", "other")):
        file = client.get(f"/runs/{run.pk}/export/", export | {"names": service})
        assert yaml.safe_load(file.content)["metadata"]["name"] == name
    api = client_of(planner)
    address = "/api/v1/deployment-names/"
    assert api.get(address).json() == {"names": {"llama-h100-east": "chat"}}
    wrong = api.post(address, {"names": {"llama-h100-east": "Not_a_name"}}, format="json")
    assert wrong.status_code == 400 and "Not_a_name" in wrong.content.decode()
    gone = api.post(address, {"names": {"llama-h100-east": ""}}, format="json")
    assert gone.json() == {"names": {}}
    assert client_of(viewer).post(address, {"names": {}}, format="json").status_code == 403


def test_an_approver_puts_a_plan_in_force(run, viewer):
    url = f"/runs/{run.pk}/in-force/"
    export = text_of(signed_in(viewer).get(f"/runs/{run.pk}/export/"))
    assert "An approver or admin activates" in export
    client = signed_in(User.objects.create_user("anna", role=User.Role.APPROVER))
    page = client.post(url, {"repeat": "daily"}, follow=True)
    assert f"Run {run.pk} is active" in text_of(page) and "by anna" in text_of(page)
    assert ActivePlan.objects.get(until=None).repeat == "daily"
    assert "Planned (LT-I)" in text_of(client.get("/plans-in-force/"))  # by its label
    assert "Planned (LT-I)" in text_of(client.get("/"))
    plan = ActivePlan.objects.get(until=None)
    address = f"/plans-in-force/{plan.pk}/end/"
    assert address in client.get(f"/plans-in-force/{plan.pk}/").content.decode()
    client.post(address)
    assert not ActivePlan.objects.filter(until=None).exists()
    assert client.post(address).status_code == 409


def test_what_is_no_plan_says_so_on_its_page(run, viewer):
    Run.objects.filter(pk=run.pk).update(kind=Run.Kind.FORECAST)
    page = signed_in(viewer).get(f"/runs/{run.pk}/export/")
    assert page.status_code == 200 and "is not a plan" in text_of(page)
