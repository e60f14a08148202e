"""bin/manage user."""

from functools import partial

import pytest

from planner.models import User
from tests.planner.management.calling import answer, command, problem

said = partial(answer, "user")


def test_people_come_change_and_go(db: None) -> None:
    added = said("add", "ada", "--role", "admin")
    assert (added["user"], added["role"]) == ("ada", "admin")
    assert str(added["invitation"]).startswith("/welcome/")
    said("add", "vera", "--role", "viewer")
    assert said("role", "vera", "--role", "approver")["role"] == "approver"
    assert said("disable", "vera")["active"] is False
    assert said("enable", "vera")["active"] is True
    assert str(said("invite", "vera")["invitation"]).startswith("/welcome/")
    listed = said("list")["users"]
    assert isinstance(listed, list) and [person["user"] for person in listed] == ["ada", "vera"]
    assert "vera" in command("user", "list")[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["add"], "the name is missing"),
        (["add", "nora"], "--role is missing"),
        (["add", "nora", "--role", "king"], "Choose from viewer"),
        (["disable", "nobody"], "nobody"),
        (["disable", "ada"], "last admin"),
    ],
)
def test_what_cannot_be_exits_2_with_a_sentence(db: None, words: list[str], says: str) -> None:
    User.objects.create_user("ada", role="admin")
    assert says in problem("user", *words)
