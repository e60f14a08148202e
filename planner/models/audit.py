"""Store who did what, in rows that are only added."""

from typing import Any, NoReturn

from django.db import models

from planner.errors import NotAllowed

APPEND_ONLY = "The audit log is only added to; nothing in it is changed or removed."


class _AppendOnlyRecords(models.QuerySet["AuditRecord"]):
    def update(self, **values: Any) -> NoReturn:
        raise NotAllowed(APPEND_ONLY)

    def delete(self) -> NoReturn:
        raise NotAllowed(APPEND_ONLY)

    def bulk_update(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotAllowed(APPEND_ONLY)


class AuditRecord(models.Model):
    """One action of a person, a rule or the command line.

    It has no foreign keys, so that later removals do not change it. ``details`` is text, which
    databases return unchanged.
    """

    number = models.BigIntegerField(unique=True)  # 1, 2, 3 ... without a gap
    at = models.DateTimeField(db_index=True)
    actor = models.CharField(max_length=200)  # a user's name, "rule: ..." or "command line"
    action = models.CharField(max_length=40, db_index=True)  # thing.verb
    key = models.CharField(max_length=120, blank=True)  # of the thing, as in addresses of pages
    name = models.CharField(max_length=200, blank=True)  # of the thing, as people read it
    details = models.TextField(default="{}")  # JSON
    workspace = models.CharField(max_length=40, blank=True)  # its slug; "": the installation

    objects = _AppendOnlyRecords.as_manager()

    class Meta:
        ordering = ["-number"]

    def __str__(self) -> str:
        return f"{self.number}: {self.actor}, {self.action} {self.name or self.key}"

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self.pk is not None:
            raise NotAllowed(APPEND_ONLY)
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise NotAllowed(APPEND_ONLY)


class AuditHead(models.Model):
    """The number of the newest audit record, in a single row.

    Whoever adds a record locks this row until the end of the transaction, so numbers have no gap.
    """

    number = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return str(self.number)
