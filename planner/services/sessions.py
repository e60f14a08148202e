"""Store sessions as hashes with their last address and use, and end them.

``SessionStore`` is Django's for the database (settings.SESSION_ENGINE), with two changes. It stores
a hash of the key. The end of a session does not move with its use: everybody signs in again after
SESSION_COOKIE_AGE.
"""

import hashlib
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends import db
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone

from planner.errors import NotFound
from planner.models import Session, User
from planner.services.audit import record
from planner.services.client_address import client_address

SEEN_INTERVAL = timedelta(minutes=1)  # pages update the row at most this often


class SessionStore(db.SessionStore):
    """Django's session store for databases, with hashed keys and a fixed expiry."""

    def __init__(self, session_key: str | None = None) -> None:
        super().__init__(session_key)
        self.created_at = self.last_used_at = timezone.now()
        self.address = ""

    @classmethod
    def get_model_class(cls) -> type[Session]:
        return Session

    @property
    def row_key(self) -> str:
        """Return the primary key of this session's row: the hash of the cookie's key."""
        return key_hash(self.session_key or "")

    def record_use(self, *, address: str) -> None:
        """Record that the session is used now, from ``address``.

        Only these two columns are written, because another request may change the rest meanwhile.
        """
        now = timezone.now()
        if address == self.address and now < self.last_used_at + SEEN_INTERVAL:
            return
        self.last_used_at, self.address = now, address
        if self.session_key:
            Session.objects.filter(pk=self.row_key).update(last_used_at=now, address=address)

    def _get_session_from_db(self) -> Session | None:
        """Return the row of this session, and keep its times and address; None if it expired."""
        row = Session.objects.filter(pk=self.row_key, expire_date__gt=timezone.now()).first()
        if row is None:
            self._session_key = None
            return None
        self.created_at, self.last_used_at = row.created_at, row.last_used_at
        self.address = row.address
        return row

    def exists(self, session_key: str) -> bool:
        return Session.objects.filter(pk=key_hash(session_key)).exists()

    def create(self) -> None:
        self.created_at = self.last_used_at = timezone.now()
        super().create()

    def create_model_instance(self, data: dict[str, Any]) -> Session:
        """Return an unsaved row of this session; it expires a fixed time after the sign-in."""
        return Session(
            session_key=self.row_key,
            session_data=self.encode(data),
            expire_date=self.created_at + timedelta(seconds=settings.SESSION_COOKIE_AGE),
            user_id=int(data[SESSION_KEY]) if SESSION_KEY in data else None,
            created_at=self.created_at,
            last_used_at=self.last_used_at,
            address=self.address,
        )

    def delete(self, session_key: str | None = None) -> None:
        if key := session_key or self.session_key:
            Session.objects.filter(pk=key_hash(key)).delete()


def sessions_of(user: User) -> QuerySet[Session]:
    """Return the sessions of a user that have not expired."""
    return Session.objects.filter(user=user, expire_date__gt=timezone.now())


def session_touch(request: HttpRequest) -> None:
    """Record that the session of this request is used, and from which address."""
    if isinstance(request.session, SessionStore):
        request.session.record_use(address=client_address(request))


def row_key_of(request: HttpRequest) -> str:
    """Return the database key of the session of this request; "" without a session."""
    return request.session.row_key if isinstance(request.session, SessionStore) else ""


def session_end(*, user: User, key: str) -> None:
    """End one of the user's own sessions; ``key`` is the key of its row."""
    ended, _ = sessions_of(user).filter(pk=key).delete()
    if not ended:
        raise NotFound("This session does not exist, or has ended.")
    record("user.session-ended", user, by=user)


def sessions_end(*, user: User, by: User | None, except_key: str = "") -> int:
    """End all sessions of ``user`` except the row ``except_key``; return how many.

    ``by`` is who ends them; None: the command line.
    """
    ended, _ = sessions_of(user).exclude(pk=except_key).delete()
    if ended:
        record("user.sessions-ended", user, by=by, sessions=ended)
    return ended


def sessions_sweep(*, now: datetime) -> int:
    """Remove expired sessions; return how many."""
    removed, _ = Session.objects.filter(expire_date__lt=now).delete()
    return removed


def key_hash(key: str) -> str:
    """Return the hash of a session key; its 32 random characters need no salt."""
    return hashlib.sha256(key.encode()).hexdigest()
