"""Store the identities that an identity provider gives to accounts."""

from django.conf import settings
from django.db import models


class ExternalIdentity(models.Model):
    """An account's subject at an issuer, which stays the same when names change there."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identities"
    )
    issuer = models.URLField(max_length=300)
    subject = models.CharField(max_length=255)  # the limit of OpenID Connect
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="identity_once")]

    def __str__(self) -> str:
        return f"{self.subject} of {self.issuer}"
