"""What somebody is told about their own account, and from where they have signed in."""

from django.conf import settings
from django.db import models


class AccountNotice(models.Model):
    """That something about how they sign in has changed: shown to them, and mailed where the
    installation sends mail."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="account_notices"
    )
    at = models.DateTimeField(auto_now_add=True)
    text = models.CharField(max_length=300)
    seen_at = models.DateTimeField(null=True)
    mailbox = models.EmailField(blank=True)  # as it was then: a thief would change it next
    mail_due = models.DateTimeField(null=True, db_index=True)  # of the next try; None: no more

    class Meta:
        ordering = ["-pk"]

    def __str__(self) -> str:
        return self.text


class KnownBrowser(models.Model):
    """Somebody has signed in by it."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="known_browsers"
    )
    browser = models.CharField(max_length=80)  # in words, such as Firefox on Linux
    network = models.CharField(max_length=50)  # its neighbours' addresses too: they are lent anew
    seen_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["user", "browser", "network"], name="browser_of_person_once"
            )
        ]

    def __str__(self) -> str:
        return f"{self.browser} of {self.network}"
