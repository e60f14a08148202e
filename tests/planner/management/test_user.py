"""bin/manage user."""

import json

import pytest
from django.core.management import call_command

from planner.models import User


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    call_command("user", *words, "--json")
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


def test_people_come_change_and_go(db: None, capsys: pytest.CaptureFixture[str]) -> None:
    added = said(capsys, "add", "ada", "--role", "admin")
    assert (added["user"], added["role"]) == ("ada", "admin")
    assert str(added["invitation"]).startswith("/welcome/")
    said(capsys, "add", "vera", "--role", "viewer")
    assert said(capsys, "role", "vera", "--role", "approver")["role"] == "approver"
    assert said(capsys, "disable", "vera")["active"] is False
    assert said(capsys, "enable", "vera")["active"] is True
    assert str(said(capsys, "invite", "vera")["invitation"]).startswith("/welcome/")
    listed = said(capsys, "list")["users"]
    assert isinstance(listed, list) and [person["user"] for person in listed] == ["ada", "vera"]
    call_command("user", "list")
    assert "vera" in capsys.readouterr().out


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
def test_what_cannot_be_exits_2_with_a_sentence(
    db: None, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    User.objects.create_user("ada", role="admin")
    with pytest.raises(SystemExit) as end:
        call_command("user", *words)
    assert end.value.code == 2 and says in capsys.readouterr().err
