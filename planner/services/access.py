"""Roles, asked for in one place."""

from __future__ import annotations

from planner.errors import NotAllowed
from planner.models import User


def check_may_plan(user: User | None) -> None:
    """Raise NotAllowed for people who only read; the command line has no user and may."""
    if user is not None and not user.may_plan:
        raise NotAllowed("Your role may only read; ask an admin for the planner role.")


def check_may_remove(user: User, owner_id: int | None, what: str) -> None:
    if not user.may_remove(owner_id):
        raise NotAllowed(f"Only the person who made {what} or an admin may remove it.")
