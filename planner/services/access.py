"""Check what the role of a user allows; the command line has no user and may do everything.

Whoever runs commands has the database anyway, so the command line needs no role.
"""

from collections.abc import Iterable

from planner.errors import NotAllowed
from planner.models import User
from planner.selectors.places import NEEDS_ADMIN, NEEDS_PLANNER, Job


def check_may_plan(user: User | None, *, refusal: str = "only read") -> None:
    """Raise NotAllowed if the user's role is read-only; None (the command line) may plan.

    ``refusal`` ends the sentence "Your role may …" of the message, such as "not upload".
    """
    if user is not None and not user.may_plan:
        raise NotAllowed(f"Your role may {refusal}. Ask an admin for the planner role.")


def check_may_approve(user: User | None) -> None:
    """Raise NotAllowed if the user may not approve; None (the command line) may."""
    if user is not None and not user.may_approve:
        raise NotAllowed("Only an approver or an admin may make a plan active. Ask an admin.")


def check_may_remove(
    user: User | None, owner_id: int | None, thing: str, verb: str = "made"
) -> None:
    """Raise NotAllowed unless ``user`` owns a row, is an admin, or is None (the command line).

    ``owner_id`` is the key of the row's owner; None if that account was removed. ``verb`` and
    ``thing`` are words of the message: "Only the person who made this calibration ...".
    """
    if user is not None and not user.may_remove(owner_id):
        raise NotAllowed(f"Only the person who {verb} {thing} or an admin may remove it.")


def check_may_administer(user: User | None) -> None:
    """Raise NotAllowed if the user is no admin; None (the command line) may administer."""
    if user is not None and not user.may_administer:
        raise NotAllowed("Only an admin may invite people and give roles. Ask an admin.")


def jobs_of(user: User, jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Return the jobs (pages of the menu) that the user's role allows."""
    refused: set[str] = set()
    if not user.may_plan:
        refused.update(NEEDS_PLANNER)
    if not user.may_administer:
        refused.update(NEEDS_ADMIN)
    return tuple(job for job in jobs if job.page not in refused)
