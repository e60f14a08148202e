"""Store uploaded trace and demand files: one row per file, next to its column store."""

from django.db import models

from planner.models.workspace import Owned


class Trace(Owned):
    """One file, identified by the hash of its bytes; ``store`` has its columns as Parquet."""

    class State(models.TextChoices):
        UPLOADED = "uploaded", "Uploaded"
        READY = "ready", "Ready"
        REFUSED = "refused", "Refused"

    class Kind(models.TextChoices):
        REQUESTS = "requests", "Requests"
        DEMAND = "demand", "Totals per interval (bin)"

    name = models.SlugField(max_length=120)  # how scenarios refer to it
    file_name = models.CharField(max_length=255)  # name of the user's file
    sha256 = models.CharField(max_length=64, db_index=True)  # of the file and reading options
    bytes = models.BigIntegerField()
    state = models.CharField(max_length=16, choices=State.choices, default=State.UPLOADED)
    problem = models.TextField(blank=True)  # why it was refused, one sentence
    # planner.inputs.ingest.IngestOptions as given
    options = models.JSONField(default=dict, blank=True)
    kind = models.CharField(max_length=16, choices=Kind.choices, blank=True)
    format = models.CharField(max_length=32, blank=True)
    requests = models.BigIntegerField(default=0)
    rejected = models.BigIntegerField(default=0)
    start_at = models.DateTimeField(null=True, blank=True)
    end_at = models.DateTimeField(null=True, blank=True)
    report = models.JSONField(default=dict, blank=True)  # planner.inputs.ingest.IngestReport
    store = models.CharField(max_length=255, blank=True)  # folder, relative to the data directory
    created_at = models.DateTimeField(auto_now_add=True)
    removal_announced_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-pk"]
        constraints = [
            # Of two simultaneous uploads of one file, the second fails here and finds the first.
            models.UniqueConstraint(
                fields=["workspace", "sha256"],
                condition=~models.Q(state="refused"),
                name="trace_once",
            ),
            models.UniqueConstraint(fields=["workspace", "name"], name="trace_name_once"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def length_s(self) -> float:
        """Return the seconds from its first to its last arrival or bin; 0 before it is read."""
        return float(self.report.get("end_ns", 0) - self.report.get("start_ns", 0)) / 1e9
