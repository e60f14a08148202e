"""Whom to tell of what, and what became of the telling."""

from django.conf import settings
from django.db import models

from planner.models.workspace import InWorkspace


class Event(models.TextChoices):
    """What somebody may want to hear of."""

    PROPOSED = "proposal.opened", "A plan is proposed"
    REVIEW = "review.requested", "A review is asked of me, or of anybody"
    MENTION = "mention", "I am mentioned"
    DECIDED = "proposal.decided", "A proposal is approved, rejected or to be changed"
    IN_FORCE = "plan.in-force", "Another plan is in force, or none any more"
    FAILED = "schedule.failed", "A scheduled plan failed or was missed"
    SOURCE = "source.problem", "A live source has a problem"
    DRIFT = "plan.drift", "What comes drifts from what was planned"
    REMOVAL = "data.removal", "Old runs or traces are going to be removed"
    DIGEST = "digest", "The weekly digest"
    TEST = "test", "A test"


class Channel(InWorkspace):
    """An address that is told: of a person (``user``), or of the workspace."""

    class Kind(models.TextChoices):
        EMAIL = "email", "E-mail"
        WEBHOOK = "webhook", "Webhook"

    kind = models.CharField(max_length=8, choices=Kind.choices)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="channels"
    )
    address = models.CharField(max_length=500)  # of a mailbox, or a URL
    events = models.JSONField(default=list, blank=True)  # of Event; [] is all of them
    salt = models.CharField(max_length=32)  # of the key that signs; see notices.signing_key
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]

    @property
    def told_of(self) -> list[str]:
        """In words; [] is everything."""
        return [str(Event(event).label) for event in self.events]

    def __str__(self) -> str:
        return self.address


class Delivery(InWorkspace):
    """One notice to one channel."""

    class State(models.TextChoices):
        WAITING = "waiting", "Waiting"
        SENT = "sent", "Sent"
        FAILED = "failed", "Failed"

    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=32, choices=Event.choices)
    text = models.TextField()
    url = models.CharField(max_length=500, blank=True)  # path on this site
    state = models.CharField(max_length=8, choices=State.choices, default=State.WAITING)
    tries = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField()  # of the next try
    problem = models.CharField(max_length=500, blank=True)  # of the last try
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-pk"]
        indexes = [models.Index(fields=["state", "due_at"])]

    def __str__(self) -> str:
        return f"{self.event} to {self.channel_id}"
