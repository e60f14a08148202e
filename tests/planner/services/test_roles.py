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
def test_a_role_says_who_may_change_what(db, role, plans, removes_own, removes_others):
    user = User.objects.create_user("una", role=role)
    assert user.may_plan is plans
    assert user.may_remove(user.pk) is removes_own
    assert user.may_remove(user.pk + 1) is removes_others
    assert user.may_remove(None) is removes_others


def test_a_superuser_may_everything_whatever_the_role(db):
    user = User.objects.create_user("una", role=Role.VIEWER, is_superuser=True)
    assert user.may_plan
    assert user.may_remove(2)


def test_who_is_new_belongs_nowhere_and_may_nothing(db):
    new = User.objects.create_user("new")
    assert new.role is None and not (new.may_plan or new.may_approve or new.may_administer)


def test_nobody_but_the_user_compares_a_role_to_grant_a_right() -> None:
    planner = Path(__file__).parents[3] / "planner"
    compares = re.compile(r"\b(user|person|by|author)\.role (==|!=|in |not in )")
    comparing = [
        path.relative_to(planner).as_posix()
        for path in planner.rglob("*.py")
        if compares.search(path.read_text(encoding="utf-8"))
    ]
    assert comparing == []
