"""What each role may do, in one table."""

import re
from pathlib import Path

import pytest

from planner.models import User

Role = User.Role


@pytest.mark.parametrize(
    ("role", "plans", "removes_own", "removes_others"),
    [
        (Role.VIEWER, False, False, False),
        (Role.PLANNER, True, True, False),
        (Role.APPROVER, True, True, False),
        (Role.ADMIN, True, True, True),
    ],
)
def test_a_role_says_who_may_change_what(role, plans, removes_own, removes_others):
    user = User(pk=1, role=role)
    assert user.may_plan is plans
    assert user.may_remove(1) is removes_own
    assert user.may_remove(2) is removes_others
    assert user.may_remove(None) is removes_others


def test_a_superuser_may_everything_whatever_the_role():
    user = User(pk=1, role=Role.VIEWER, is_superuser=True)
    assert user.may_plan
    assert user.may_remove(2)


def test_who_is_new_only_reads(db):
    assert User.objects.create_user("new").role == Role.VIEWER


def test_roles_are_asked_for_in_one_place() -> None:
    planner = Path(__file__).parents[3] / "planner"
    asking = {
        path.relative_to(planner).as_posix()
        for path in planner.rglob("*.py")
        if re.search(r"\.may_(plan|approve|remove|administer)\b", path.read_text(encoding="utf-8"))
    }
    assert asking == {"models/user.py", "services/access.py"}
