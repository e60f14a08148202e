"""Workspaces: what belongs to one is of no other, and nothing is asked for outside of one."""

from typing import Any

import pytest
from django.apps import apps
from django.core import mail
from django.test import Client

from planner.config.celery import app as celery_app
from planner.errors import NotAllowed, NotFound, PlannerError
from planner.models import ApiToken, Run, Scenario, Trace, User, Workspace
from planner.models.workspace import InWorkspace, NoWorkspace, current_workspace, use_workspace
from planner.services import people, workspaces
from planner.services.passwords import password_mail
from planner.services.runs import run_create
from planner.services.scenarios import scenario_create
from planner.services.tokens import token_create, token_of
from planner.services.worker import run_execute
from tests.planner.management.calling import answer, problem
from tests.planner.samples import DOCUMENT, client_of
from tests.planner.web.pages import signed_in, text_of

# What is of no workspace by itself, and why.
APART = {
    "Workspace": "is one",
    "Membership": "of its workspace",
    "User": "an account may work in several",
    "SecondFactor": "of its account",
    "ExternalIdentity": "of its account",
    "Session": "of its account",
    "AttemptWindow": "counts strangers too",
    "Counter": "numbers are given for the whole installation",
    "AuditHead": "one log for the installation",
    "AuditRecord": "one log for the installation",
}


def _reaches(model: Any, seen: tuple[Any, ...] = ()) -> bool:
    """Whether it belongs to a workspace, or is a part of what does."""
    if issubclass(model, InWorkspace):
        return True
    parents = [
        field.related_model
        for field in model._meta.get_fields()
        if field.many_to_one and field.concrete and not field.null
    ]
    return any(parent not in seen and _reaches(parent, (*seen, model)) for parent in parents)


def test_every_row_belongs_to_a_workspace_or_says_why_not() -> None:
    models = apps.get_app_config("planner").get_models()
    alone = {model.__name__ for model in models if not _reaches(model)}
    assert alone == set(APART)


@pytest.fixture
def other(db: None) -> Workspace:
    return Workspace.objects.create(name="Other", slug="other")


def test_nothing_is_asked_for_outside_of_a_workspace(db: None) -> None:
    with use_workspace(None):
        for ask in (Run.objects.all, Scenario.objects.count, lambda: Trace(name="x")):
            with pytest.raises(NoWorkspace):
                ask()
        assert Run.everywhere.count() == 0


def test_what_is_made_in_one_is_of_no_other(
    planner: User, scenario: Scenario, trace: Trace, other: Workspace
) -> None:
    with use_workspace(other):
        assert not Scenario.objects.exists() and not Trace.objects.filter(pk=trace.pk).exists()
        planner.join(other, "planner")
        again = scenario_create(owner=planner, document=DOCUMENT)  # of the same name
        assert again.workspace == other
        Trace.objects.create(name=trace.name, file_name="x", sha256=trace.sha256, bytes=1)
        with pytest.raises(PlannerError, match="already"):
            scenario_create(owner=planner, document=DOCUMENT)
    assert Scenario.objects.get() == scenario


def test_a_run_is_carried_out_in_its_workspace(trace: Trace, other: Workspace) -> None:
    """Whoever carries it out: the trace that its document names is not found from another."""
    with use_workspace(other):
        run = run_create(owner=None, kind="compare", document=DOCUMENT, enqueue=False)
    with use_workspace(None):
        done = run_execute(run_id=run.pk)
    assert done.state == Run.State.FAILED and "no trace 'conv'" in done.problem


def test_a_role_is_of_one_workspace(planner: User, other: Workspace) -> None:
    planner.join(other, "viewer")
    assert planner.may_plan
    with use_workspace(other):
        assert not planner.may_plan and planner.role == "viewer"


def test_a_session_enters_another_and_sees_what_is_there(
    planner: User, scenario: Scenario, other: Workspace
) -> None:
    client = signed_in(planner)
    address = f"/scenarios/{scenario.pk}/"
    assert client.get(address).status_code == 200
    assert client.post("/workspaces/other/enter/").status_code == 404  # no member yet
    planner.join(other, "viewer")
    assert client.post("/workspaces/other/enter/").status_code == 302
    assert client.get(address).status_code == 404
    assert "in Other" in text_of(client.get("/"))
    planner.leave(other)
    assert client.get(address).status_code == 200  # back in the one that is left
    planner.leave(current_workspace())
    refused = client.get(address)
    assert refused.status_code == 403 and "no workspace" in text_of(refused)
    assert client.get("/account/password/").status_code == 200


def test_the_api_is_told_by_header_or_token(
    planner: User, scenario: Scenario, other: Workspace
) -> None:
    address = f"/api/v1/scenarios/{scenario.pk}/"
    planner.join(other, "planner")
    session = signed_in(planner)
    assert session.get(address).status_code == 200
    there = {"Headroom-Workspace": "other"}
    assert session.get(address, headers=there).status_code == 404
    nowhere = session.get(address, headers={"Headroom-Workspace": "secret"})
    assert nowhere.status_code == 404 and "you belong to: main, other" in nowhere.json()["detail"]
    api = client_of(planner)
    assert api.get(address).status_code == 200
    assert api.get(address, headers=there).status_code == 404
    login = {"username": "pia", "password": "pia-secret", "workspace": "other"}
    answer = Client().post("/api/v1/token/", login, content_type="application/json")
    key = answer.json()["token"]
    assert ApiToken.everywhere.get(sha256__isnull=False, workspace=other).user == planner
    asked = Client().get(address, headers={"Authorization": f"Token {key}"})
    assert asked.status_code == 404
    planner.leave(other)
    assert token_of(key) is None


def test_people_are_brought_in_and_let_go(admin: User, planner: User, other: Workspace) -> None:
    admin.join(other, "admin")
    with use_workspace(other):
        with pytest.raises(NotFound):
            workspaces.person_join(by=admin, name="nobody", role="viewer")
        workspaces.person_join(by=admin, name="pia", role="viewer")
        with pytest.raises(PlannerError, match="already"):
            workspaces.person_join(by=admin, name="pia", role="planner")
        # Who also works elsewhere is not for one workspace's admin to lock out or take over.
        person = User.objects.get(username="pia")
        with pytest.raises(NotAllowed, match="admin of the installation"):
            people.person_change(by=admin, person=person, active=False)
        with pytest.raises(NotAllowed, match="admin of the installation"):
            people.invitation_path(by=admin, person=person)
        key = token_create(user=person).key
        assert token_of(key)
        workspaces.person_leave(by=admin, person=person)
        assert token_of(key) is None and not person.may_plan
        with pytest.raises(NotAllowed, match="last admin"):
            workspaces.person_leave(by=admin, person=admin)
    assert User.objects.get(username="pia").may_plan


def test_only_who_looks_after_the_installation_makes_workspaces(admin: User) -> None:
    with pytest.raises(NotAllowed):
        workspaces.workspace_add(by=admin, name="Search")
    root = User.objects.create_superuser("root", password="root-secret")
    client = signed_in(root)
    made = client.post("/workspaces/", {"name": "Search & chat"}, follow=True)
    assert "You are in Search & chat now" in text_of(made)
    again = client.post("/workspaces/", {"name": "Search & chat"})
    assert again.status_code == 400
    assert Workspace.objects.filter(name="Search & chat").count() == 1
    wrong = client.post("/workspaces/", {"name": "x", "slug": "A b"})
    assert wrong.status_code == 400 and "lower-case letters" in text_of(wrong)
    assert signed_in(admin).post("/workspaces/", {"name": "More"}).status_code == 403


def test_the_command_line_is_about_one(scenario: Scenario, other: Workspace) -> None:
    assert answer("workspace", "add", "Search") == {"workspace": "search", "name": "Search"}
    answer("user", "add", "una", "--role", "admin", "--workspace", "search")
    answer("user", "promote", "una", "--workspace", "search")
    listed = answer("workspace", "list")["workspaces"]
    assert sorted((entry["workspace"], entry["people"]) for entry in listed) == [
        ("main", 1), ("other", 0), ("search", 1),
    ]  # fmt: skip
    assert "There is no workspace 'nowhere'" in problem("user", "list", "--workspace", "nowhere")


def test_a_forgotten_password_is_a_mail_where_mail_is_sent(
    planner: User, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    monkeypatch.setattr(celery_app, "send_task", lambda *_, args, **__: sent.append(args))
    page = Client().get("/password/forgotten/")
    assert "sends no mail" in text_of(page)
    settings.HEADROOM_SMTP, settings.HEADROOM_URL = "smtp://mail.example", "https://h.example"
    answers = {
        text_of(Client().post("/password/forgotten/", {"username": name}))
        for name in ("pia", "nobody", "pia")
    }
    assert len(answers) == 1 and sent == [["pia"], ["nobody"]]  # alike, and once a minute
    assert not password_mail(name="pia") and not password_mail(name="nobody")
    User.objects.update(email="pia@example.com")
    assert password_mail(name="pia")
    path = mail.outbox[0].body.partition("https://h.example")[2].split()[0]
    assert "Choose a password" in text_of(Client().get(path, follow=True))
