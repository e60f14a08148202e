"""Store every saved version of a scenario."""

from django.conf import settings
from django.db import models


class ScenarioVersion(models.Model):
    """A scenario as it was saved once: by whom, when, why; rows are only added."""

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
