"""The members of the team."""

from __future__ import annotations

from django.db.models import Count, Q, QuerySet

from planner.errors import NotFound
from planner.models import User


def people_list() -> QuerySet[User]:
    """Everybody, those who may sign in first, each with ``runs``: how many they started."""
    return User.objects.annotate(runs=Count("run")).order_by("-is_active", "username")


def person_get(name: str) -> User:
    person = User.objects.filter(username=name).first()
    if person is None:
        raise NotFound(f"There is nobody called {name}.")
    return person


def admins_active() -> QuerySet[User]:
    """Those who can still invite people and give roles."""
    admin = Q(role=User.Role.ADMIN) | Q(is_superuser=True)
    return User.objects.filter(admin, is_active=True)
