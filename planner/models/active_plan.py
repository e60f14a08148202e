"""Store active and former plans; at most one plan per scenario is active at a time."""

from django.conf import settings
from django.db import models

from planner.models.counter import Numbered
from planner.models.workspace import InWorkspace


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
