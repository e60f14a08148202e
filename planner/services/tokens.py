"""Create, check and end tokens of the API; the database holds only their hashes."""

import hashlib
import secrets
from datetime import timedelta
from typing import NamedTuple

from django.db.models import F, Q, QuerySet
from django.utils import timezone

from planner.errors import NotFound, PlannerError
from planner.models import ApiToken, User
from planner.services.audit import record

RANDOM_BYTES = 32  # enough that a plain hash of them cannot be reversed
DEFAULT_DAYS, MAX_DAYS = 90, 366
MAX_TOKENS = 20  # tokens of one person; scripts that log in each time create many
LOGIN = "log-in"  # name of tokens from a log-in that names none
USED_EVERY = timedelta(minutes=1)  # the last use is recorded at most this often


class NewToken(NamedTuple):
    """A new token and its key."""

    token: ApiToken
    key: str  # shown once


def token_create(
    *, user: User, name: str = LOGIN, scope: str = ApiToken.Scope.ALL, days: int = DEFAULT_DAYS
) -> NewToken:
    """Create an API token for the current workspace, and remove the user's expired ones.

    A user has at most MAX_TOKENS tokens. At that number, a new token named LOGIN replaces the
    oldest of that name. Raises PlannerError if there is none to replace, or unless ``days`` is 1 to
    MAX_DAYS.
    """
    if not 1 <= days <= MAX_DAYS:
        raise PlannerError(f"days {days}: a token lasts 1 to {MAX_DAYS} days.")
    now = timezone.now()
    tokens = tokens_of(user)
    tokens.filter(expires_at__lt=now).delete()
    if tokens.count() >= MAX_TOKENS:
        oldest_login = tokens.filter(name=LOGIN).order_by("created_at").first()
        if name != LOGIN or oldest_login is None:
            raise PlannerError(
                f"You have {MAX_TOKENS} tokens, the largest number allowed. End one first."
            )
        oldest_login.delete()
    key = secrets.token_urlsafe(RANDOM_BYTES)
    token = ApiToken.objects.create(
        user=user,
        name=name.strip()[:60] or LOGIN,
        scope=ApiToken.Scope(scope),
        sha256=hash_of(key),
        expires_at=now + timedelta(days=days),
    )
    record("token.made", token, by=user, scope=str(token.scope), days=days)
    return NewToken(token, key)


def tokens_of(user: User) -> QuerySet[ApiToken]:
    """Return all tokens of a person, each with its workspace."""
    return ApiToken.everywhere.select_related("workspace").filter(user=user)


def token_of(key: str) -> ApiToken | None:
    """Return the token with this key, and record its use.

    None if it has expired, or if its owner may not sign in or enter its workspace.
    """
    now = timezone.now()
    may_enter = Q(user__memberships__workspace=F("workspace")) | Q(user__is_superuser=True)
    token = (
        ApiToken.everywhere.select_related("user", "workspace")
        .filter(may_enter, sha256=hash_of(key.strip()), expires_at__gt=now, user__is_active=True)
        .first()
    )
    if token and (token.last_used_at is None or token.last_used_at < now - USED_EVERY):
        ApiToken.everywhere.filter(pk=token.pk).update(last_used_at=now)
    return token


def token_end(*, user: User, number: int) -> None:
    """End one of the user's own tokens; raise NotFound if there is none of that number."""
    ended, _ = tokens_of(user).filter(pk=number).delete()
    if not ended:
        raise NotFound(f"You have no token {number}.")
    record("token.ended", str(number), by=user)


def tokens_end(*, user: User) -> None:
    """End all tokens of a user."""
    ended, _ = tokens_of(user).delete()
    if ended:
        record("token.ended", "all", by=user)


def hash_of(key: str) -> str:
    """Return the hash of a token's key; its random bits need no salt."""
    return hashlib.sha256(key.encode()).hexdigest()
