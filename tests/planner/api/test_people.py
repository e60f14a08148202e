"""People over the API: what the browser's page does."""

from planner.models import User
from tests.planner.samples import client_of

USERS = "/api/v1/users/"


def test_an_admin_invites_and_changes(admin: User) -> None:
    api = client_of(admin)
    invited = api.post(USERS, {"user": "nora", "role": "planner"}, format="json")
    assert invited.status_code == 201
    assert invited.json()["invitation"].startswith("http://testserver/welcome/")
    changed = api.patch(f"{USERS}nora/", {"role": "approver", "active": False}, format="json")
    assert changed.json()["role"] == "approver" and not changed.json()["active"]
    listed = {person["user"]: person["active"] for person in api.get(USERS).json()["results"]}
    assert listed == {"ada": True, "nora": False}
    refused = api.post(f"{USERS}nora/invitation/")
    assert refused.status_code == 400 and "enable the account first" in refused.json()["detail"]
