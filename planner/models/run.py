"""Store runs with their parts, and sweeps of runs over values of two settings."""

from django.db import models

from planner.models.counter import Numbered
from planner.models.workspace import Owned


class Sweep(Numbered, Owned):
    """A grid of runs over the values of one or two settings of a scenario.

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


class Run(Numbered, Owned):
    """Inputs, life cycle and result of a run; ``store`` has its arrays as Parquet files."""

    class Kind(models.TextChoices):
        INGEST = "ingest", "Ingest"
        FORECAST = "forecast", "Forecast"
        PLAN = "plan", "Plan without simulation"
        SIMULATE = "simulate", "Simulate"
        COMPARE = "compare", "Plan and compare"
        PROVISION = "provision", "Operator-level provisioning"
        SIZE = "size", "Replica capacity"
        PD_RATIO = "pd-ratio", "Prefill-decode ratio"
        PARETO = "pareto", "Trade-off"
        PLACE = "place", "Network placement"
        SHARE = "share", "Shared GPUs"
        OUTLOOK = "outlook", "Cost by month"
        BACKTEST = "backtest", "Backtest of forecasters"

    class State(models.TextChoices):
        PENDING = "pending", "Waiting"
        RUNNING = "running", "Running"
        COMPLETED = "completed", "Completed"
        FAILED = "failed", "Failed"  # an expected reason
        ERRORED = "errored", "Error"  # a bug; the traceback is stored
        CANCELLED = "cancelled", "Cancelled"

    ACTIVE_STATES = (State.PENDING, State.RUNNING)

    kind = models.CharField(max_length=16, choices=Kind.choices)
    state = models.CharField(max_length=16, choices=State.choices, default=State.PENDING)
    scenario = models.ForeignKey(
        "planner.Scenario", null=True, blank=True, on_delete=models.SET_NULL, related_name="runs"
    )
    trace = models.ForeignKey(
        "planner.Trace", null=True, blank=True, on_delete=models.SET_NULL, related_name="runs"
    )
    sweep = models.ForeignKey(
        "planner.Sweep", null=True, blank=True, on_delete=models.SET_NULL, related_name="runs"
    )
    cell = models.PositiveIntegerField(null=True, blank=True)  # its index in the sweep's grid
    name = models.CharField(max_length=120, blank=True)  # of the scenario or file at that time
    document = models.TextField(blank=True)  # the scenario at the time of the request
    options = models.JSONField(default=dict, blank=True)
    # Own GPUs, models and profile versions that the document names, as they were at that time.
    resolved = models.JSONField(default=dict, blank=True)
    seed = models.PositiveIntegerField(default=0)
    code_version = models.CharField(max_length=64, blank=True)
    progress = models.FloatField(default=0.0)  # 0 to 1
    stage = models.CharField(max_length=120, blank=True)  # what it does now, in words
    log = models.TextField(blank=True)
    problem = models.TextField(blank=True)  # failed: the sentence; errored: a short one
    # Kind of failure, for /metrics; "" if it completed.
    reason = models.CharField(max_length=60, blank=True, default="", db_default="")
    traceback = models.TextField(blank=True)  # errored only; never shown to users
    result = models.JSONField(default=dict, blank=True)  # figures, as on the command line
    store = models.CharField(max_length=255, blank=True)  # folder, relative to the data directory
    cancel_requested = models.BooleanField(default=False)
    attempts = models.PositiveIntegerField(default=0)  # number of times that a worker started it
    # Id of the worker that leads it.
    worker = models.CharField(max_length=64, blank=True, default="", db_default="")
    step = models.PositiveIntegerField(default=0, db_default=0)  # finished steps, see RunPart
    # Workers that died on it since the last finished step, but not by outages of database, broker
    # or host.
    failures = models.PositiveIntegerField(default=0, db_default=0)
    heartbeat_at = models.DateTimeField(null=True, blank=True)
    enqueued_at = models.DateTimeField(null=True, blank=True)
    idempotency_key = models.CharField(max_length=120, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    removal_announced_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created_at", "-pk"]
        indexes = [
            models.Index(fields=["state", "heartbeat_at"]),
            # Lists begin with the newest run: outside sweeps, or by state.
            models.Index(fields=["sweep", "-created_at", "-id"], name="run_newest"),
            models.Index(fields=["state", "-created_at", "-id"], name="run_newest_by_state"),
            models.Index(fields=["name"], name="run_name"),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["workspace", "owner", "idempotency_key"],
                condition=~models.Q(idempotency_key=""),
                name="run_once_per_key",
            )
        ]

    def __str__(self) -> str:
        return f"{self.get_kind_display()} {self.pk}: {self.name}"

    @property
    def is_finished(self) -> bool:
        return self.state not in self.ACTIVE_STATES


class RunPart(models.Model):
    """A part of a run that one worker computes, with its result once there is one.

    ``step`` counts the run's calls of ``Parts.map``. ``place`` is the index of the part in a call.
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
