"""Store schedules that plan again at set times, their firings, and the outcomes of plans."""

from django.conf import settings
from django.db import models

from planner.models.counter import Numbered
from planner.models.workspace import InWorkspace


class Schedule(Numbered, InWorkspace):
    """When to plan a scenario again, and how much a new plan may differ without a review."""

    class Kind(models.TextChoices):
        PLAN = "plan", "Plan without simulation"
        COMPARE = "compare", "Plan and compare"

    name = models.CharField(max_length=120)
    scenario = models.ForeignKey(
        "planner.Scenario", null=True, on_delete=models.SET_NULL, related_name="schedules"
    )
    kind = models.CharField(max_length=16, choices=Kind.choices, default=Kind.PLAN)
    options = models.JSONField(default=dict, blank=True)  # options of its runs
    policy = models.CharField(max_length=161, blank=True)  # "": the recommended policy
    cron = models.CharField(max_length=120)  # minute, hour, day of month, month, day of week
    zone = models.CharField(max_length=64, default="UTC")
    # Largest change as a share of replica-hours and of cost; None: every plan is reviewed.
    most_replicas = models.FloatField(null=True, blank=True)
    most_cost = models.FloatField(null=True, blank=True)
    paused = models.BooleanField(default=False)
    next_due = models.DateTimeField()
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(fields=["workspace", "name"], name="schedule_name_once")
        ]

    def __str__(self) -> str:
        return self.name


class Firing(InWorkspace):
    """One due time of a schedule, with its run and result.

    A due time has one row, even if several ticks of the scheduler reach it.
    """

    class State(models.TextChoices):
        RUNNING = "running", "Running"
        APPROVED = "approved", "Approved by rule"
        REVIEW = "review", "To be reviewed"
        FAILED = "failed", "Failed"
        MISSED = "missed", "Missed"

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="firings")
    due_at = models.DateTimeField()
    as_of = models.DateTimeField(null=True)  # the run uses the data of that time
    fired_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    state = models.CharField(max_length=16, choices=State.choices)
    run = models.ForeignKey("planner.Run", null=True, on_delete=models.SET_NULL, related_name="+")
    proposal = models.ForeignKey(
        "planner.Proposal", null=True, on_delete=models.SET_NULL, related_name="firings"
    )
    difference = models.JSONField(default=dict, blank=True)  # planner.outputs.plan_difference
    words = models.TextField(blank=True)
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )  # None: fired by the clock

    class Meta:
        ordering = ["-due_at", "-pk"]
        constraints = [
            models.UniqueConstraint(fields=["schedule", "due_at"], name="fired_once_per_moment")
        ]

    def __str__(self) -> str:
        return f"{self.schedule} of {self.due_at:%Y-%m-%d %H:%M}"


class Outcome(Numbered, InWorkspace):
    """A comparison of a plan with the actual traffic, over one period in which it was active."""

    class State(models.TextChoices):
        RUNNING = "running", "Running"
        DONE = "done", "Done"
        FAILED = "failed", "Failed"

    plan = models.ForeignKey(
        "planner.ActivePlan", on_delete=models.CASCADE, related_name="outcomes"
    )
    begins = models.DateTimeField()
    ends = models.DateTimeField()
    state = models.CharField(max_length=16, choices=State.choices, default=State.RUNNING)
    started_at = models.DateTimeField()
    figures = models.JSONField(default=dict, blank=True)  # planner.domain.retrospective
    words = models.TextField(blank=True)

    class Meta:
        ordering = ["-begins", "-pk"]
        constraints = [
            models.UniqueConstraint(fields=["plan", "begins"], name="judged_once_per_stretch")
        ]

    def __str__(self) -> str:
        return f"{self.plan}, {self.begins:%Y-%m-%d}"
