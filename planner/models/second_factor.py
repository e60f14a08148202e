"""A second factor of signing in: one-time codes of an authenticator, and codes for its loss."""

from django.conf import settings
from django.db import models


class SecondFactor(models.Model):
    """Somebody's, of the installation: it is about the account, as the password is."""

    user = models.OneToOneField(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="second_factor"
    )
    sealed = models.TextField()  # the shared key, encrypted: a copy of the database holds none
    confirmed_at = models.DateTimeField(null=True, blank=True)  # None: begun, not yet asked for
    last_step = models.BigIntegerField(default=0)  # 30 s steps of Unix time: no code works twice
    recovery = models.JSONField(default=list)  # SHA-256 of the codes that are left

    def __str__(self) -> str:
        return f"of {self.user}"
