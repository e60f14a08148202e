"""Store the tokens that scripts sign in with."""

from django.conf import settings
from django.db import models

from planner.models.workspace import InWorkspace


class ApiToken(InWorkspace):
    """A token of a person for one workspace and a limited time.

    It allows reading only, or all that the person may do. The token is shown once. Only its hash is
    stored.
    """

    class Scope(models.TextChoices):
        ALL = "all", "Everything that I may do"
        READ = "read", "Read-only"

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="api_tokens"
    )
    name = models.CharField(max_length=60)
    scope = models.CharField(max_length=8, choices=Scope.choices, default=Scope.ALL)
    sha256 = models.CharField(max_length=64, unique=True)  # of the token, in hexadecimal
    created_at = models.DateTimeField(auto_now_add=True)
    expires_at = models.DateTimeField()
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return self.name
