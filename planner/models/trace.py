"""Store traces of traffic, one row per uploaded file, and live sources of traffic."""

from django.db import models

from planner.models.workspace import InWorkspace, Owned


class Trace(Owned):
    """The traffic in one file, read with certain options; ``store`` has its columns as Parquet."""

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
    # The options of reading, planner.inputs.ingest.IngestOptions.
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

    @property
    def length_s(self) -> float:
        """Return the time (s) from the first to the last arrival or bin; 0 before it is read."""
        return float(self.report.get("end_ns", 0) - self.report.get("start_ns", 0)) / 1e9


class Source(InWorkspace):
    """A live source of traffic; ``store`` has its series, and scenarios use it as ``trace``."""

    class Kind(models.TextChoices):
        PROMETHEUS = "prometheus", "Prometheus"
        FOLDER = "folder", "Folder of files"
        BUCKET = "bucket", "Bucket of files"
        SAMPLES = "samples", "Samples sent by a program"

    class State(models.TextChoices):
        NEW = "new", "Not read yet"
        READ = "read", "Read"
        PROBLEM = "problem", "Problem"

    name = models.SlugField(max_length=80)  # how scenarios refer to it
    kind = models.CharField(max_length=16, choices=Kind.choices)
    settings = models.JSONField(default=dict, blank=True)  # planner.inputs.live.settings
    bin_s = models.PositiveIntegerField(default=300)
    every_s = models.PositiveIntegerField(default=300)  # how often it is read
    paused = models.BooleanField(default=False)
    state = models.CharField(max_length=16, choices=State.choices, default=State.NEW)
    problem = models.TextField(blank=True)  # problem of the last reading, one sentence
    read_at = models.DateTimeField(null=True, blank=True)  # time of its last answer
    read_until = models.DateTimeField(null=True, blank=True)  # end of what has been read
    due_at = models.DateTimeField(null=True, blank=True)
    reading_since = models.DateTimeField(null=True, blank=True)  # claimed by a worker
    found = models.JSONField(default=dict, blank=True)  # which engines and metrics are read
    # Speed drifts of active plans at the last reading: planner.services.plan_outcomes.
    speed = models.JSONField(default=list, blank=True)
    store = models.CharField(max_length=255, blank=True)  # folder, relative to the data directory
    trace = models.OneToOneField(
        "planner.Trace", null=True, blank=True, on_delete=models.SET_NULL, related_name="source"
    )
    owner = models.ForeignKey("planner.User", null=True, blank=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["workspace", "name"], name="source_name_once")
        ]

    def __str__(self) -> str:
        return self.name


class SourceReading(models.Model):
    """The result of one reading of a source, or of one file of its folder or bucket."""

    source = models.ForeignKey(Source, on_delete=models.CASCADE, related_name="readings")
    at = models.DateTimeField(auto_now_add=True)
    file_name = models.CharField(max_length=255, blank=True)  # "": a span of time
    sha256 = models.CharField(max_length=64, blank=True)  # of the file
    start_at = models.DateTimeField(null=True, blank=True)
    end_at = models.DateTimeField(null=True, blank=True)
    bins = models.PositiveIntegerField(default=0)
    requests = models.FloatField(default=0.0)
    problem = models.TextField(blank=True)

    class Meta:
        ordering = ["-at", "-pk"]
        indexes = [models.Index(fields=["source", "sha256"])]

    def __str__(self) -> str:
        return f"{self.source_id}: {self.file_name or self.at}"
