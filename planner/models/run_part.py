"""Store independent parts of a run that any worker can compute, while the run lasts."""

from django.db import models


class RunPart(models.Model):
    """A part of a run: its worker, and its result once there is one.

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
    worker = models.CharField(max_length=64, blank=True)  # worker that computes it
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    progress = models.FloatField(default=0.0)  # 0 to 1
    failures = models.PositiveIntegerField(default=0)  # number of workers that failed on it
    result = models.BinaryField(null=True, blank=True)  # planner.domain.encoding

    class Meta:
        ordering = ["run", "step", "place"]
        constraints = [
            models.UniqueConstraint(fields=["run", "step", "place"], name="run_part_once")
        ]

    def __str__(self) -> str:
        return f"Part {self.step}.{self.place} of run {self.run_id}: {self.name}"
