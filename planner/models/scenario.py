"""Store scenarios: one row per YAML file."""

from django.conf import settings
from django.db import models

from planner.models.workspace import InWorkspace


class Scenario(InWorkspace):
    """A scenario; ``document`` is the YAML as its author wrote it, comments included."""

    name = models.CharField(max_length=120)
    document = models.TextField()
    version = models.PositiveIntegerField(default=1)  # number of saved changes
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL
    )
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["-updated_at", "-pk"]
        constraints = [
            models.UniqueConstraint(fields=["workspace", "name"], name="scenario_name_once")
        ]

    def __str__(self) -> str:
        return self.name
