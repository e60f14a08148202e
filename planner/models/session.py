"""Store who is signed in, and from where."""

from django.conf import settings
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import models


class Session(AbstractBaseSession):
    """Django's session under a hash of the cookie's key.

    A reader of the database therefore cannot use any session.
    """

    session_key = models.CharField(max_length=64, primary_key=True)  # SHA-256, in hexadecimal
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="sessions"
    )  # None: not signed in, or the second factor is missing
    created_at = models.DateTimeField()
    last_used_at = models.DateTimeField()  # rounded: see services.sessions.SEEN_EVERY
    address = models.CharField(max_length=45, blank=True)  # last network address

    class Meta:
        ordering = ["-last_used_at"]

    def __str__(self) -> str:
        return f"Session of {self.created_at:%Y-%m-%d %H:%M} UTC, last used from {self.address}"
