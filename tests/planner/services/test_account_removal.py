"""What is kept about somebody is theirs to have; an account goes, and what it owned stays."""

import json

import pytest
from django.db import models

from planner.errors import NotAllowed, PlannerError
from planner.models import (
    ActivePlan,
    ApiToken,
    AuditRecord,
    Channel,
    Run,
    Scenario,
    Session,
    User,
    Workspace,
)
from planner.models.workspace import MAIN, current_workspace, use_workspace
from planner.services.account_removal import SECRET_COLUMNS, account_data, account_remove
from planner.services.second_factor import factor_begin
from planner.services.tokens import token_create
from tests.planner.management.calling import answer as answer_of
from tests.planner.objects import WHEN, made
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in, text_of


def remove(person: User, *, by: User | None = None, to: User | None = None) -> int:
    return account_remove(by=by, person=person, confirm=person.username, new_owner=to)


def test_everything_about_somebody_is_in_what_they_get_but_what_they_sign_in_with(
    planner: User, viewer: User
) -> None:
    made(planner, "own")
    Channel.objects.create(kind="email", address="pia@example.com", user=planner, salt="s")
    key = factor_begin(user=planner).key
    token = token_create(user=planner, name="nightly").key
    client = signed_in(planner)
    answer = client.get("/account/data/")
    assert "attachment" in answer["Content-Disposition"]
    data, text = answer.json(), answer.content.decode()
    assert data["account"]["user"] == "pia"
    assert {row["name"] for row in data["about"]["api tokens"]} == {"nightly", "log-in"}
    assert data["about"]["channels"][0]["address"] == "pia@example.com"
    assert [row["name"] for row in data["made"]["scenarios, owner"]] == ["own chat"]
    assert "token.made" in {line["action"] for line in data["audit_log"]}
    secrets = (
        key,
        token,
        planner.password,
        Session.objects.get().pk,
        planner.second_factor.encrypted_key,
    )
    assert not any(secret in text for secret in secrets)
    assert not SECRET_COLUMNS & {
        name for rows in data["about"].values() for row in rows for name in row
    }
    # As the API and the command line have it; of somebody else nothing.
    assert client_of(planner).get("/api/v1/me/data/").json()["account"]["user"] == "pia"
    assert account_data(viewer, by=viewer)["made"]["scenarios, owner"] == []


def test_names_of_a_workspace_that_was_left_are_not_told(planner: User) -> None:
    with use_workspace(Workspace.objects.create(name="Other", slug="other")):
        planner.join(current_workspace(), "planner")
        made(planner, "their")
        planner.leave(current_workspace())
    assert "their chat" not in json.dumps(account_data(planner, by=None), default=str)


def test_what_is_owned_passes_on_and_all_about_the_person_goes(
    planner: User, colleague: User, admin: User
) -> None:
    made(planner, "own")
    plan = ActivePlan.objects.create(
        run=Run.objects.first(), number=1, scenario="x", policy="lt-i", repeat="once", zone="UTC",
        begins=WHEN, ends=WHEN, pools=[], since=WHEN, by=planner,
    )  # fmt: skip
    Run.objects.filter(pk=plan.run_id).update(idempotency_key="same")
    Run.objects.create(kind="plan", owner=colleague, idempotency_key="same")
    client = signed_in(planner)
    with pytest.raises(PlannerError, match="owner"):
        remove(planner, by=admin)
    owned, pk = Run.objects.filter(owner=planner).count(), planner.pk
    assert remove(planner, by=admin, to=colleague) > owned > 0
    assert Run.objects.filter(owner=colleague).count() == owned + 1
    assert Scenario.objects.get().owner == colleague
    plan.refresh_from_db()
    assert plan.by is None  # who decided is not somebody else now
    assert not ApiToken.everywhere.exists() and client.get("/runs/").status_code == 302
    last = AuditRecord.objects.first()
    assert last is not None and (last.action, last.name) == ("user.removed", "pia")
    # Nothing names them any more, in any table.
    for relation in User._meta.related_objects:
        if isinstance(relation.field, models.ForeignKey):
            rows = relation.field.model._base_manager.filter(**{relation.field.name: pk})
            assert not rows.exists(), relation


def test_who_may_not(planner: User, colleague: User, viewer: User, admin: User) -> None:
    made(planner, "own")
    for by, to, says in (
        (colleague, colleague, "Only an admin"),
        (admin, viewer, "may not plan"),
        (admin, planner, "cannot take over"),
    ):
        with pytest.raises((NotAllowed, PlannerError), match=says):
            remove(planner, by=by, to=to)
    with pytest.raises(PlannerError, match="type pia"):
        account_remove(by=admin, person=planner, confirm="pi", new_owner=colleague)
    with pytest.raises(NotAllowed, match="Ask another admin"):
        remove(admin, by=admin)
    with pytest.raises(NotAllowed, match="last admin of Main"):
        remove(admin)
    with use_workspace(Workspace.objects.create(name="Other", slug="other")):
        viewer.join(current_workspace(), "viewer")
    viewer.refresh_from_db()
    with pytest.raises(NotAllowed, match="vera"):
        remove(viewer, by=admin)
    assert User.objects.filter(username__in=["pia", "carl", "vera", "ada"]).count() == 4


def test_by_page_api_and_command_line(
    planner: User, colleague: User, viewer: User, admin: User, scenario: Scenario
) -> None:
    page = signed_in(admin)
    assert "pia owns 1 item" in text_of(page.get("/people/pia/remove/"))
    wrong = page.post("/people/pia/remove/", {"confirm": "pia"})
    assert wrong.status_code == 400 and "Choose a new owner" in text_of(wrong)
    page.post("/people/pia/remove/", {"confirm": "pia", "to": colleague.pk})
    scenario.refresh_from_db()
    assert scenario.owner == colleague
    boss = client_of(admin)
    assert boss.delete("/api/v1/users/vera/account/").status_code == 400
    answer = boss.delete("/api/v1/users/vera/account/?confirm=vera").json()
    assert answer == {"user": "vera", "passed": 0}
    removed = answer_of("user", "remove", "carl", "--to", "ada", "--confirm", "carl")
    assert removed == {"removed": "carl", "passed": 1}
    assert answer_of("user", "data", "ada", "--workspace", MAIN)["account"]["user"] == "ada"
    assert [user.username for user in User.objects.all()] == ["ada"]
