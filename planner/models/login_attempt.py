"""Store recent attempts at secrets that can be guessed, such as passwords."""

from django.db import models


class AttemptWindow(models.Model):
    """The attempts of the last minute at one name, from one network or on one account.

    They are in the database, not in the cache: a locked row makes the count exact when attempts are
    made in parallel, on SQLite as on PostgreSQL.
    """

    # SHA-256 of the kind of attempt and its target
    key = models.CharField(max_length=64, primary_key=True)
    moments = models.JSONField(default=list)  # s since the epoch, the oldest first
    newest_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{len(self.moments)} attempts until {self.newest_at:%Y-%m-%d %H:%M:%S}"
