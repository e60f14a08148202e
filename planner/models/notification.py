"""Store the subscriptions to events, and the deliveries of notifications."""

from django.conf import settings
from django.db import models

from planner.models.workspace import InWorkspace


class Event(models.TextChoices):
    """Events that a person may subscribe to."""

    PROPOSED = "proposal.opened", "A plan is proposed"
    REVIEW = "review.requested", "A review is requested"
    MENTION = "mention", "Somebody mentions me"
    DECIDED = "proposal.decided", "A proposal is approved, rejected or needs changes"
    IN_FORCE = "plan.in-force", "The active plan changes"
    FAILED = "schedule.failed", "A scheduled plan failed or was missed"
    SOURCE = "source.problem", "A live source has a problem"
    DRIFT = "plan.drift", "Demand drift"
    REMOVAL = "data.removal", "Old runs or traces will be removed"
    DIGEST = "digest", "The weekly digest"
    TEST = "test", "A test message"


class Channel(InWorkspace):
    """An address that receives notifications: a person's (``user``), or the workspace's."""

    class Kind(models.TextChoices):
        EMAIL = "email", "E-mail"
        WEBHOOK = "webhook", "Webhook"

    kind = models.CharField(max_length=8, choices=Kind.choices)
    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.CASCADE, related_name="channels"
    )
    address = models.CharField(max_length=500)  # a mailbox or a URL
    events = models.JSONField(default=list, blank=True)  # values of Event; [] means all
    salt = models.CharField(max_length=32)  # of the key: services.notifications.signing_key
    by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["pk"]

    @property
    def event_labels(self) -> list[str]:
        """Return the labels of the subscribed events; [] means all events."""
        return [str(Event(event).label) for event in self.events]

    def __str__(self) -> str:
        return self.address


class Delivery(InWorkspace):
    """One notification to one channel."""

    class State(models.TextChoices):
        WAITING = "waiting", "Waiting"
        SENT = "sent", "Sent"
        FAILED = "failed", "Failed"

    channel = models.ForeignKey(Channel, on_delete=models.CASCADE, related_name="deliveries")
    event = models.CharField(max_length=32, choices=Event.choices)
    text = models.TextField()
    url = models.CharField(max_length=500, blank=True)  # a path on this site
    state = models.CharField(max_length=8, choices=State.choices, default=State.WAITING)
    tries = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField()  # time of the next try
    problem = models.CharField(max_length=500, blank=True)  # problem of the last try
    created_at = models.DateTimeField(auto_now_add=True)
    sent_at = models.DateTimeField(null=True)

    class Meta:
        ordering = ["-pk"]
        indexes = [models.Index(fields=["state", "due_at"])]

    def __str__(self) -> str:
        return f"{self.event} to {self.channel_id}"
