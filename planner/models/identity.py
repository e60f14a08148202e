"""Who an identity provider says that somebody is."""

from django.conf import settings
from django.db import models


class ExternalIdentity(models.Model):
    """An account's subject at an issuer, by which it is known however names change there."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="identities"
    )
    issuer = models.URLField(max_length=300)
    subject = models.CharField(max_length=255)  # as long as OpenID Connect lets it be
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["issuer", "subject"], name="identity_once")]

    def __str__(self) -> str:
        return f"{self.subject} of {self.issuer}"
