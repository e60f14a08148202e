"""Store proposed plans with their discussion and decisions, and active plans."""

from django.conf import settings
from django.db import models

from planner.models.counter import Numbered
from planner.models.workspace import InWorkspace


class Proposal(Numbered, InWorkspace):
    """A proposal to activate the plan of a completed run, compared with the active plan."""

    class State(models.TextChoices):
        DRAFT = "draft", "Draft"
        OPEN = "open", "Open"
        CHANGES = "changes", "Changes requested"
        APPROVED = "approved", "Approved"
        REJECTED = "rejected", "Rejected"
        WITHDRAWN = "withdrawn", "Withdrawn"

    title = models.CharField(max_length=160)
    message = models.TextField(blank=True)
    state = models.CharField(max_length=16, choices=State.choices, default=State.OPEN)
    author = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )  # None: a rule, or the command line
    rule = models.CharField(max_length=200, blank=True)  # rule that proposed it
    # Null only after a removal by hand: the services refuse to remove the run of a proposal.
    run = models.ForeignKey("planner.Run", null=True, on_delete=models.SET_NULL, related_name="+")
    scenario = models.ForeignKey(
        "planner.Scenario", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    version = models.ForeignKey(
        "planner.ScenarioVersion", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    revision = models.PositiveIntegerField(default=1)  # number of revisions so far
    options = models.JSONField(default=dict)  # planner.outputs.options: policy, repeat, names ...
    policy = models.CharField(max_length=161)
    usd_30d = models.FloatField(null=True)  # cost of the plan, if 30 days were like its window
    # The base of the comparison: the active plan at its creation or amendment, and a run with the
    # figures of that plan.
    base = models.ForeignKey(
        "planner.ActivePlan", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    base_run = models.ForeignKey(
        "planner.Run", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    # Replay of the active plan on the proposal's traffic, if that differs.
    replay = models.ForeignKey(
        "planner.Run", null=True, on_delete=models.SET_NULL, related_name="+"
    )
    # Replay of the proposal, if its run planned without a simulation.
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
    def is_undecided(self) -> bool:
        """Return whether the proposal is neither approved, rejected nor withdrawn."""
        return self.state in (self.State.DRAFT, self.State.OPEN, self.State.CHANGES)

    @property
    def repeats_active_plan(self) -> bool:
        """Return whether approval would activate the same plan again."""
        base = self.base
        if base is None or base.until is not None:
            return False
        active_options = {"policy": base.policy, "repeat": base.repeat}
        proposed_options = active_options | self.options | {"policy": self.policy}
        return base.run_id == self.run_id and proposed_options == active_options


class ProposalEntry(models.Model):
    """A comment on a proposal, or an action; rows are only added."""

    class Kind(models.TextChoices):
        OPENED = "opened", "proposed it"
        READY = "ready", "marked it ready for review"
        REQUESTED = "requested", "requested a review"
        COMMENT = "comment", "commented"
        APPROVED = "approved", "approved"
        CHANGES = "changes", "requested changes"
        AMENDED = "amended", "amended it"
        REJECTED = "rejected", "rejected it"
        WITHDRAWN = "withdrawn", "withdrew it"
        IN_FORCE = "in-force", "activated it"

    proposal = models.ForeignKey(Proposal, on_delete=models.CASCADE, related_name="entries")
    kind = models.CharField(max_length=16, choices=Kind.choices)
    revision = models.PositiveIntegerField()  # revision of the proposal at that time
    run = models.ForeignKey("planner.Run", null=True, on_delete=models.SET_NULL, related_name="+")
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    rule = models.CharField(max_length=200, blank=True)  # rule that did it, if no person did
    text = models.TextField(blank=True)
    # What a comment is about. {}: the whole proposal. Else {"setting": address}, or
    # {"chart": name, "series": label, "time": moment, "value": number}.
    anchor = models.JSONField(default=dict)
    mentions = models.ManyToManyField(settings.AUTH_USER_MODEL, related_name="+")
    at = models.DateTimeField()

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.get_kind_display()}, {self.at:%Y-%m-%d %H:%M}"


class ReviewRules(InWorkspace):
    """How many and which approvals a plan needs before it becomes active."""

    approvals = models.PositiveSmallIntegerField(default=1)  # number needed
    self_approval = models.BooleanField(default=False)  # True: authors may approve
    # Above these dollars in 30 days an admin must be among the approvers; None: never.
    admin_above_usd_30d = models.FloatField(null=True, blank=True)
    required = models.BooleanField(default=False)  # True: plans become active only by a proposal
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        verbose_name_plural = "review rules"
        constraints = [models.UniqueConstraint(fields=["workspace"], name="review_rules_once")]

    def __str__(self) -> str:
        return f"{self.approvals} to approve"


class ActivePlan(Numbered, InWorkspace):
    """A replica schedule as it was at activation; its run may change or be removed later.

    Rows are only added and ended. A row without ``until`` is active.
    """

    run = models.ForeignKey("planner.Run", null=True, on_delete=models.SET_NULL, related_name="+")
    # The approved proposal; None: activated without one.
    proposal = models.ForeignKey(
        "planner.Proposal", null=True, on_delete=models.SET_NULL, related_name="plans"
    )
    number = models.PositiveIntegerField()  # of the run, which may be removed
    scenario = models.CharField(max_length=120)
    policy = models.CharField(max_length=161)
    # of the policy; "" in rows of older versions
    label = models.CharField(max_length=161, blank=True)
    repeat = models.CharField(max_length=8)  # once, daily or weekly
    zone = models.CharField(max_length=64)
    begins = models.DateTimeField()  # start of the planned window
    ends = models.DateTimeField()
    pools = models.JSONField()  # name, model, region, gpu, role; steps of begins, ends, replicas
    # None: the command line.
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    since = models.DateTimeField()
    until = models.DateTimeField(null=True)
    # The reason, if there is no proposal with one.
    message = models.CharField(max_length=500, blank=True, default="", db_default="")
    # The earlier plan that was activated again.
    origin = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        ordering = ["-since", "-pk"]

    def __str__(self) -> str:
        return f"Run {self.number}, {self.label or self.policy}"

    @property
    def who(self) -> str:
        """Return who activated the plan: a person, a rule, or the command line."""
        by_rule = self.proposal.rule if self.proposal else ""
        return self.by.username if self.by else by_rule or "the command line"

    @property
    def why(self) -> str:
        """Return the reason for activation: its message, else the title of its proposal."""
        return self.message or (self.proposal.title if self.proposal else "")


class DeploymentName(InWorkspace):
    """A name for a deployment, stored by a user; ``rule`` is the default name."""

    rule = models.CharField(max_length=63)
    name = models.CharField(max_length=63)
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering = ["rule"]
        constraints = [
            models.UniqueConstraint(fields=["workspace", "rule"], name="deployment_rule_once")
        ]

    def __str__(self) -> str:
        return f"{self.rule}={self.name}"
