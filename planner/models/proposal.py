"""A plan that is proposed to be put in force: what is said of it, and what was decided."""

from django.conf import settings
from django.db import models

from planner.models.counter import Numbered
from planner.models.workspace import InWorkspace


class Proposal(Numbered, InWorkspace):
    """A finished plan or comparison, held against what is in force; its key is its number."""

    class State(models.TextChoices):
        DRAFT = "draft", "Draft"
        OPEN = "open", "Open"
        CHANGES = "changes", "Changes asked for"
        APPROVED = "approved", "Approved"
        REJECTED = "rejected", "Rejected"
        WITHDRAWN = "withdrawn", "Withdrawn"

    title = models.CharField(max_length=160)
    message = models.TextField(blank=True)
    state = models.CharField(max_length=16, choices=State.choices, default=State.OPEN)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )  # None: a rule, or somebody at the command line
    rule = models.CharField(max_length=200, blank=True)  # that proposed it
    # Null only where it was removed by hand: the services refuse to remove a run that is proposed.
    run = models.ForeignKey("planner.Run", null=True, on_delete=models.SET_NULL, related_name="+")
    scenario = models.ForeignKey(
        "planner.Scenario", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    version = models.ForeignKey(
        "planner.ScenarioVersion", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    revision = models.PositiveIntegerField(default=1)  # counts the runs that it had
    options = models.JSONField(default=dict)  # planner.exports.options: policy, repeat, names ...
    policy = models.CharField(max_length=161)
    usd_30d = models.FloatField(null=True)  # of the plan, if 30 days were like its window
    # What it is held against: the plan in force when it was made or renewed, and a run that says
    # what that plan gives.
    base = models.ForeignKey(
        "planner.PlanInForce", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    base_run = models.ForeignKey(
        "planner.Run", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    # Of what is in force, on the traffic of what is proposed, where that is another.
    replay = models.ForeignKey(
        "planner.Run", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    # Of what is proposed, where its run planned and replayed nothing.
    outcome = models.ForeignKey(
        "planner.Run", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    reviewers = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="+")
    created_at = models.DateTimeField(auto_now_add=True)
    updated_at = models.DateTimeField(auto_now=True)
    decided_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-pk"]
        indexes = [models.Index(fields=["state"])]

    def __str__(self) -> str:
        return f"Proposal {self.pk}: {self.title}"

    @property
    def going(self) -> bool:
        """Whether it still waits for somebody."""
        return self.state in (self.State.DRAFT, self.State.OPEN, self.State.CHANGES)


class ProposalEntry(models.Model):
    """What was said or done about a proposal; rows are only added."""

    class Kind(models.TextChoices):
        OPENED = "opened", "proposed this"
        READY = "ready", "says that it is ready for review"
        REQUESTED = "requested", "asked for review"
        COMMENT = "comment", "commented"
        APPROVED = "approved", "approved"
        CHANGES = "changes", "asked for changes"
        AMENDED = "amended", "amended it"
        REJECTED = "rejected", "rejected it"
        WITHDRAWN = "withdrawn", "withdrew it"
        IN_FORCE = "in-force", "put it in force"

    proposal = models.ForeignKey(Proposal, on_delete=models.CASCADE, related_name="entries")
    kind = models.CharField(max_length=16, choices=Kind.choices)
    revision = models.PositiveIntegerField()  # of the proposal, as it was then
    run = models.ForeignKey("planner.Run", null=True, on_delete=models.SET_NULL, related_name="+")
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    rule = models.CharField(max_length=200, blank=True)  # that did it, where nobody did
    text = models.TextField(blank=True)
    # What a comment is about: {} is the whole; {"setting": address}, or
    # {"chart": name, "series": label, "time": moment, "value": number}.
    anchor = models.JSONField(default=dict)
    mentions = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="+")
    at = models.DateTimeField()

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.get_kind_display()}, {self.at:%Y-%m-%d %H:%M}"


class ReviewRules(InWorkspace):
    """Who has to agree before a plan takes effect."""

    approvals = models.PositiveSmallIntegerField(default=1)  # of people other than its authors
    self_approval = models.BooleanField(default=False)  # authors may approve too
    # Above so many dollars in 30 days one of those who approve is an admin; None: never needed.
    admin_above_usd_30d = models.FloatField(null=True, blank=True)
    required = models.BooleanField(default=False)  # nothing goes in force but by a proposal
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "review rules"
        constraints = [models.UniqueConstraint(fields=["workspace"], name="review_rules_once")]

    def __str__(self) -> str:
        return f"{self.approvals} to approve"
