"""What deployments are called in the clusters that plans are exported to."""

from django.conf import settings
from django.db import models

from planner.models.workspace import InWorkspace


class DeploymentName(InWorkspace):
    """``rule`` is the name that an export would give by itself, ``name`` the one it has."""

    rule = models.CharField(max_length=63)
    name = models.CharField(max_length=63)
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["rule"]
        constraints = [
            models.UniqueConstraint(fields=["workspace", "rule"], name="deployment_rule_once")
        ]

    def __str__(self) -> str:
        return f"{self.rule}={self.name}"
