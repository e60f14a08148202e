"""Store the names of deployments in the clusters that plans are exported to."""

from django.conf import settings
from django.db import models

from planner.models.workspace import InWorkspace


class DeploymentName(InWorkspace):
    """A chosen ``name`` for the deployment that an export would call ``rule``."""

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
