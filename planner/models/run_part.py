"""An independent part of a run that any worker can compute; it exists while its run goes on."""

from django.db import models


class RunPart(models.Model):
    """Work shared between workers: who computes it, and its result once it is there.

    ``step`` counts the run's calls of ``Parts.map``, ``place`` the parts of one call.
    """

    class State(models.TextChoices):
        WAITING = "waiting", "Waiting"
        RUNNING = "running", "Running"
        DONE = "done", "Done"

    run = models.ForeignKey("planner.Run", on_delete=models.CASCADE, related_name="parts")
    step = models.PositiveIntegerField()
    place = models.PositiveIntegerField()
    name = models.CharField(max_length=200)
    state = models.CharField(max_length=8, choices=State.choices, default=State.WAITING)
    worker = models.CharField(max_length=64, blank=True)  # that computes it
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    progress = models.FloatField(default=0.0)  # 0 to 1
    failures = models.PositiveIntegerField(default=0)  # workers that it ended
    result = models.BinaryField(null=True, blank=True)  # planner.studies.encoding

    class Meta:
        ordering = ["run", "step", "place"]
        constraints = [
            models.UniqueConstraint(fields=["run", "step", "place"], name="run_part_once")
        ]

    def __str__(self) -> str:
        return f"Part {self.step}.{self.place} of run {self.run_id}: {self.name}"
