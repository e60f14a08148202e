"""Give numbers without gaps to rows that people name by their number."""

from typing import Any

from django.db import connection, models, transaction


class Counter(models.Model):
    """The last number that was given to a row of one model; it never decreases."""

    kind = models.CharField(max_length=40, unique=True)  # the name of the model
    last = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.kind}: {self.last}"


class Numbered(models.Model):
    """A row whose primary key is its number: 1, 2, 3 and so on, without gaps.

    A sequence of PostgreSQL would leave gaps: 32 numbers at a crash, one at each rolled-back
    insert. The row of Counter is part of the transaction that inserts, so there are none. It stays
    when numbered rows are removed, so no number is used twice.
    """

    class Meta:
        abstract = True

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Save the row; a new one gets the next number of its model."""
        if self.pk is not None:
            return super().save(*args, **kwargs)
        try:
            with transaction.atomic():
                (self.pk,) = take_numbers(type(self))
                return super().save(*args, **kwargs | {"force_insert": True})
        except BaseException:
            self.pk = None
            raise


def take_numbers(model: type[Numbered], count: int = 1) -> range:
    """Return the next ``count`` numbers of a model, for rows to insert in this transaction.

    The counter stays locked until the transaction ends, and others who need a number wait. If rows
    have higher numbers, as after the restore of a backup without counters, it continues from them.
    """
    assert connection.in_atomic_block, "a number is taken in the transaction that inserts its row"
    name = model._meta.model_name
    counter, _ = Counter.objects.select_for_update().get_or_create(kind=name)
    highest = model._base_manager.aggregate(models.Max("pk"))["pk__max"] or 0
    first = max(counter.last, highest) + 1
    counter.last = first + count - 1
    counter.save(update_fields=["last"])
    if connection.vendor == "postgresql":
        # bulk_create, or an older version during an upgrade, inserts without a counter.
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)",
                [model._meta.db_table, counter.last],
            )
    return range(first, first + count)
