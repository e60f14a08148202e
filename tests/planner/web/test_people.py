"""The people page, and that nobody is offered what would be refused."""

import re

from planner.models import Scenario, Trace, User
from tests.planner.web.pages import signed_in, text_of
from tests.planner.web.study import completed_run

PEOPLE = "/people/"


def test_an_admin_invites_changes_and_disables(admin: User, planner: User) -> None:
    client = signed_in(admin)
    invited = client.post(PEOPLE, {"name": "nora", "role": "approver"})
    assert re.search(r"http://testserver/welcome/\S+/\S+/", text_of(invited))
    assert User.objects.get(username="nora").role == User.Role.APPROVER
    client.post("/people/nora/", {"role": "viewer"})
    assert "can no longer sign in" in text_of(
        client.post("/people/nora/", {"access": "disable"}, follow=True)
    )
    nora = User.objects.get(username="nora")
    assert nora.role == User.Role.VIEWER and not nora.is_active
    assert "disabled" in text_of(client.get(PEOPLE))
    again = client.post(PEOPLE, {"name": "pia", "role": "viewer"})
    assert again.status_code == 400 and "'pia'" in text_of(again)
    assert "/welcome/" in text_of(client.post("/people/pia/invitation/"))


def test_removing_is_offered_to_those_who_may(
    trace: Trace, scenario: Scenario, planner: User, colleague: User, admin: User
) -> None:
    completed = completed_run(planner, scenario)
    Trace.objects.update(state=Trace.State.REFUSED)  # its page needs no columns then
    pages = {
        f"/traces/{trace.name}/": "trace-delete",
        f"/scenarios/{scenario.pk}/": "scenario-delete",
        f"/runs/{completed.pk}/": "run-delete",
    }
    for user, offered in ((planner, True), (colleague, False), (admin, True)):
        client = signed_in(user)
        for address in pages:
            assert (f"{address}delete/" in client.get(address).content.decode()) is offered, address
