"""Store sweeps: one scenario run for every pair of values of two of its settings."""

from django.db import models

from planner.models.counter import Numbered
from planner.models.workspace import Owned


class Sweep(Numbered, Owned):
    """The settings that a sweep varies.

    Its runs refer to it as ``sweep``. Their ``cell`` is their index in the grid, row by row.
    """

    name = models.CharField(max_length=120)  # of the scenario at that time
    scenario = models.ForeignKey(
        "planner.Scenario", null=True, blank=True, on_delete=models.SET_NULL, related_name="sweeps"
    )
    kind = models.CharField(max_length=16)  # kind of its runs
    document = models.TextField()  # the scenario at that time, which every cell changes
    options = models.JSONField(default=dict, blank=True)  # options of every run
    axes = models.JSONField()  # one or two, each {"key", "values"}
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["-created_at", "-pk"]

    def __str__(self) -> str:
        return f"Sweep {self.pk}: {self.name}"
