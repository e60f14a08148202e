"""The plans that clusters follow: of each scenario one at a time, and those that were before it."""

from django.conf import settings
from django.db import models

from planner.models.counter import Numbered
from planner.models.workspace import InWorkspace


class PlanInForce(Numbered, InWorkspace):
    """A timetable frozen as it was put in force: what becomes of its run does not change it. Rows
    are only added and ended; those without ``until`` are in force."""

    run = models.ForeignKey("planner.Run", null=True, on_delete=models.SET_NULL, related_name="+")
    # That was approved; None: somebody put it in force without one.
    proposal = models.ForeignKey(
        "planner.Proposal", null=True, on_delete=models.SET_NULL, related_name="plans"
    )
    number = models.PositiveIntegerField()  # of the run, also after it was removed
    scenario = models.CharField(max_length=120)
    policy = models.CharField(max_length=161)
    label = models.CharField(max_length=161, blank=True)  # of the policy; "" of plans from before
    repeat = models.CharField(max_length=8)  # once, daily or weekly
    zone = models.CharField(max_length=64)
    begins = models.DateTimeField()  # of the window that was planned
    ends = models.DateTimeField()
    pools = models.JSONField()  # name, model, region, gpu, role; steps of begins, ends, replicas
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )  # None: somebody at the command line
    since = models.DateTimeField()
    until = models.DateTimeField(null=True)
    # Why, where no proposal says it.
    message = models.CharField(max_length=500, blank=True, default="", db_default="")
    # The earlier plan that was put in force again.
    origin = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        ordering = ["-since", "-pk"]

    def __str__(self) -> str:
        return f"Run {self.number}, {self.label or self.policy}"

    @property
    def who(self) -> str:
        """Put it in force: somebody, the rule that proposed it, or who is at the machine."""
        by_rule = self.proposal.rule if self.proposal else ""
        return self.by.username if self.by else by_rule or "the command line"

    @property
    def why(self) -> str:
        return self.message or (self.proposal.title if self.proposal else "")
