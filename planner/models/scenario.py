"""Store scenarios and their versions."""

from django.conf import settings
from django.db import models

from planner.models.workspace import Owned


class Scenario(Owned):
    """A scenario; ``document`` is the YAML as its author wrote it, comments included."""

    name = models.CharField(max_length=120)
    document = models.TextField()
    version = models.PositiveIntegerField(default=1)  # number of saved changes
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["-updated_at", "-pk"]
        constraints = [
            models.UniqueConstraint(fields=["workspace", "name"], name="scenario_name_once")
        ]


class ScenarioVersion(models.Model):
    """A saved version of a scenario: by whom, when and why; rows are only added."""

    scenario = models.ForeignKey(
        "planner.Scenario", on_delete=models.CASCADE, related_name="versions"
    )
    number = models.PositiveIntegerField()  # Scenario.version at that time
    name = models.CharField(max_length=120)
    document = models.TextField()
    message = models.CharField(max_length=500, blank=True)
    # The version that was restored or branched from, perhaps of another scenario.
    origin = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="+")
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["scenario", "-number"]
        constraints = [
            models.UniqueConstraint(fields=["scenario", "number"], name="scenario_version_once")
        ]

    def __str__(self) -> str:
        return f"{self.name}, version {self.number}"
