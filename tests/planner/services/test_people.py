"""Who gets in, with which role, and that an admin always stays."""

import pytest
from django.test import Client
from django.urls import reverse

from planner.errors import NotAllowed, PlannerError
from planner.models import User
from planner.services import people
from planner.services.tokens import token_create, token_of


def choose(path: str, password: str) -> int:
    """Follow an invitation to its form and send a password; the status of the last answer."""
    client = Client()
    form = client.get(path, follow=True)
    address = form.redirect_chain[-1][0] if form.redirect_chain else path
    sent = {"new_password1": password, "new_password2": password}
    return client.post(address, sent).status_code


def test_who_is_invited_chooses_a_password_once_and_signs_in(admin: User) -> None:
    invited = people.person_invite(by=admin, name="nora", role="planner")
    login = {"username": "nora", "password": "a-long-secret-1"}
    assert Client().post(reverse("web:login"), login).status_code == 200  # refused: none yet
    assert choose(invited.path, login["password"]) == 302
    assert Client().post(reverse("web:login"), login).status_code == 302
    page = Client().get(invited.path, follow=True)
    assert "no longer works" in page.content.decode()


def test_a_weak_password_is_refused_where_it_is_chosen(admin: User) -> None:
    invited = people.person_invite(by=admin, name="nora", role="viewer")
    for weak in ("12345678", "123456789012", "a-short-one"):
        assert choose(invited.path, weak) == 200
    assert not User.objects.get(username="nora").has_usable_password()


def test_a_new_invitation_ends_with_the_password_it_was_for(admin: User, planner: User) -> None:
    path = people.invitation_path(by=admin, person=planner)
    planner.set_password("another-long-secret")
    planner.save()
    assert "no longer works" in Client().get(path, follow=True).content.decode()


def test_who_is_disabled_is_out_everywhere_and_may_come_back(admin: User, planner: User) -> None:
    client = Client()
    client.force_login(planner)
    key = token_create(user=planner).key
    people.person_change(by=admin, person=planner, active=False)
    assert client.get(reverse("web:home")).status_code == 302
    assert token_of(key) is None
    with pytest.raises(PlannerError, match="enable the account first"):
        people.invitation_path(by=admin, person=planner)
    people.person_change(by=admin, person=planner, active=True)
    login = {"username": "pia", "password": "pia-secret"}
    assert Client().post(reverse("web:login"), login).status_code == 302


@pytest.mark.parametrize("change", [{"role": "viewer"}, {"active": False}])
def test_the_last_admin_stays_admin_and_in(admin: User, change: dict[str, object]) -> None:
    with pytest.raises(NotAllowed, match="ada is the last admin"):
        people.person_change(by=admin, person=User.objects.get(pk=admin.pk), **change)  # type: ignore[arg-type]
    kept = User.objects.get(pk=admin.pk)
    assert kept.may_administer and kept.is_active
    people.person_invite(by=admin, name="alma", role="admin")
    people.person_change(by=admin, person=kept, **change)  # type: ignore[arg-type]


def test_the_installation_s_admin_is_not_for_a_workspace_s_to_take_over(admin: User) -> None:
    root = User.objects.create_superuser("root", password="root-secret")
    assert people.person_change(by=admin, person=root, role="viewer").may_administer
    with pytest.raises(NotAllowed, match="only an admin of the installation"):
        people.person_change(by=admin, person=root, active=False)
    with pytest.raises(NotAllowed, match="only an admin of the installation"):
        people.invitation_path(by=admin, person=root)


@pytest.mark.parametrize(
    ("name", "role", "says"),
    [
        ("pia", "viewer", "'pia'"),
        ("a b", "viewer", "User name 'a b'"),
        ("", "viewer", "User name ''"),
        ("nora", "king", "Choose from viewer, planner, approver, admin"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(
    planner: User, name: str, role: str, says: str
) -> None:
    with pytest.raises(PlannerError, match=says):
        people.person_invite(by=None, name=name, role=role)
