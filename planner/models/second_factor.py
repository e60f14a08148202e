"""Store second factors: one-time codes of an authenticator, and recovery codes."""

from django.conf import settings
from django.db import models


class SecondFactor(models.Model):
    """The second factor of an account; it belongs to no workspace, as the password does not."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="second_factor"
    )
    # the shared key, encrypted, so a copy of the database has no usable key
    encrypted_key = models.TextField()
    # None: not confirmed, so sign-ins do not ask for it
    confirmed_at = models.DateTimeField(null=True, blank=True)
    # 30 s steps of Unix time, so that no code works twice
    last_step = models.BigIntegerField(default=0)
    recovery = models.JSONField(default=list)  # SHA-256 of the unused codes

    def __str__(self) -> str:
        return f"of {self.user}"
