"""Rows of every table of the product, with chosen text in every column that holds text.

Tables and columns are found by walking the models, so a new one is filled without a change here.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from django.core.management.color import no_style
from django.db import connection, models
from django.db.models import Field, Model

from planner.models import AuditHead
from planner.services.row_documents import tables_of_rows
from planner.storage import row_arrays

TEXT = (models.CharField, models.TextField)
STORE = "store"
SINCE = datetime(2026, 2, 28, 23, 59, 59, 123456, tzinfo=UTC)


def text_columns() -> Iterator[tuple[type[Model], Field[Any, Any]]]:
    for model in tables_of_rows():
        for column in model._meta.concrete_fields:
            if isinstance(column, (*TEXT, models.JSONField)):
                yield model, column


def fill(alphabet: str) -> None:
    """Fill empty tables: every column of text holds the whole alphabet, in as many rows as needed.

    Rows with a ``store`` get a folder with an array in the data directory.
    """
    count = max(len(_pieces(alphabet, column)) for _, column in text_columns())
    made: dict[type[Model], Sequence[Model]] = {}
    for model in _in_order():
        model._base_manager.all().delete()  # such as the workspace that migrations make
        rows = [row_of(model, number, alphabet, made) for number in range(count)]
        made[model] = model._base_manager.bulk_create(rows)
        for number, row in enumerate(made[model]):
            for many in model._meta.many_to_many:
                if many.related_model in made:
                    targets = made[many.related_model]
                    getattr(row, many.name).set([targets[number], targets[-1]])
            if store := getattr(row, "store", ""):
                row_arrays.folder(store).mkdir(parents=True)
                (row_arrays.folder(store) / "array").write_bytes(store.encode())
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), list(made)):
            cursor.execute(statement)
    AuditHead.objects.filter(pk=made[AuditHead][0].pk).update(number=count)


def row_of(
    model: type[Model], number: int, alphabet: str, made: dict[type[Model], Sequence[Model]]
) -> Model:
    """Make an unsaved row that refers to rows of the same number, where there are any."""
    values: dict[str, Any] = {}
    for column in model._meta.concrete_fields:
        if column.is_relation:
            if column.related_model in made:
                values[column.name] = made[column.related_model][number]
        elif not column.primary_key:
            values[column.name] = _value(column, number, alphabet)
    return model(pk=number + 1, **values)


def _value(column: Field[Any, Any], number: int, alphabet: str) -> Any:
    if isinstance(column, models.JSONField):
        key = f"{alphabet}{number}"
        return {key: [alphabet, None, True, number, 0.1, {"deep": [alphabet, {}]}]}
    if isinstance(column, TEXT):
        pieces = _pieces(alphabet, column)
        piece = pieces[number % len(pieces)]
        if column.name == STORE:  # the folder of its arrays, below one that a backup holds
            names = [piece[start : start + 40] for start in range(0, len(piece), 40)]
            return "/".join(["traces", f"{column.model.__name__}-{number}", *names])
        return f"{number:<3}{piece}" if _is_unique(column) else piece
    values = {
        models.BooleanField: number % 2 == 0,
        models.FloatField: number + 0.1,
        models.DecimalField: Decimal(number),
        models.DateTimeField: SINCE + timedelta(days=number),
        models.DateField: SINCE.date() + timedelta(days=number),
        models.DurationField: timedelta(seconds=number),
        models.UUIDField: uuid.UUID(int=number),
        models.BinaryField: b"\x00\xff\n" + bytes([number]),
        models.IntegerField: number + 1,
    }
    return next(value for kind, value in values.items() if isinstance(column, kind))


def _pieces(alphabet: str, column: Field[Any, Any]) -> list[str]:
    """Cut the alphabet into as many texts as the length of the column asks for."""
    length = getattr(column, "max_length", None) or len(alphabet)
    if column.name == STORE:
        alphabet, length = alphabet.replace("/", ""), length - 60
    elif _is_unique(column):
        length -= 3  # for the number before it
    return [alphabet[start : start + length] for start in range(0, len(alphabet), length)]


def _is_unique(column: Field[Any, Any]) -> bool:
    together = column.model._meta.total_unique_constraints
    return column.unique or any(column.name in constraint.fields for constraint in together)


def _in_order() -> Iterator[type[Model]]:
    """Yield each model after those that its rows have to refer to."""
    waiting, done = list(tables_of_rows()), set[type[Model]]()
    while waiting:
        ready = [model for model in waiting if _needed(model) <= done]
        assert ready, waiting
        for model in ready:
            waiting.remove(model)
            done.add(model)
            yield model


def _needed(model: type[Model]) -> set[type[Model]]:
    columns = [column for column in model._meta.concrete_fields if column.is_relation]
    return {one.related_model for one in columns if not one.null and one.related_model is not model}
