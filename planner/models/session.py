"""Who is signed in, where."""

from django.conf import settings
from django.contrib.sessions.base_session import AbstractBaseSession
from django.db import models


class Session(AbstractBaseSession):
    """Django's, kept under the hash of what the browser's cookie says: whoever reads the database
    signs in by none of them."""

    session_key = models.CharField(max_length=64, primary_key=True)  # SHA-256, in hexadecimal
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="sessions"
    )  # None: not signed in, or half
    begun_at = models.DateTimeField()
    seen_at = models.DateTimeField()  # roughly: see services.sessions.SEEN_EVERY
    address = models.CharField(max_length=45, blank=True)  # of the network, seen last

    class Meta:
        ordering = ["-seen_at"]

    def __str__(self) -> str:
        return f"Session of {self.begun_at:%Y-%m-%d %H:%M} UTC, last used from {self.address}"
