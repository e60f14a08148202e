"""Rows of former versions carried through the migrations, in a process and database of its own.

Prints how many there were, and a line for whatever is gone or reads otherwise.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from itertools import count
from typing import Any

import django
from django.db import IntegrityError, transaction

STOPS = ("0001_initial", "0017_schedules", "0031_in_force_label")  # each filled with rows
ONE = "ReviewRules"  # of which there was one row
NUMBERS = count(3)
SAID = {
    "CharField": "w",
    "TextField": "some words",
    "SlugField": "w",
    "EmailField": "a@example.com",
    "BinaryField": b"\x00\xff",
    "BooleanField": True,
    "FloatField": 0.1,
    "JSONField": {"a": [1, None, "ä"]},
    "DateField": date(2026, 2, 28),
    "DateTimeField": datetime(2026, 2, 28, 23, 59, 59, 123456, tzinfo=UTC),
}


def main() -> None:
    django.setup()
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    kept: dict[str, dict[Any, dict[str, Any]]] = defaultdict(dict)
    for stop in STOPS:
        executor = MigrationExecutor(connection)
        executor.migrate([("planner", stop)])
        state = MigrationExecutor(connection).loader.project_state([("planner", stop)])
        fill(state.apps.get_app_config("planner").get_models(), kept, len(kept))
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())
    print(json.dumps({"rows": sum(map(len, kept.values())), "told": sorted(set(told(kept)))}))


def told(kept: dict[str, dict[Any, dict[str, Any]]]) -> Iterator[str]:
    """Whatever is gone or reads otherwise than it did."""
    from django.apps import apps

    for name, before in kept.items():
        now = {row["id"]: row for row in apps.get_model("planner", name)._base_manager.values()}
        for pk, row in before.items():
            if pk not in now:
                yield f"{name}: a row is lost"
                continue
            for column, value in row.items():
                if column not in now[pk]:
                    yield f"{name}.{column} is gone"
                elif now[pk][column] != value:
                    yield f"{name}.{column}: {value!r} became {now[pk][column]!r}"
    members = apps.get_model("planner", "Membership")._base_manager
    roles = dict(members.filter(workspace__slug="main").values_list("user_id", "role"))
    for pk, row in kept["User"].items():
        if "role" in row and roles.get(pk) != row["role"]:
            yield f"User {pk} was {row['role']} and is {roles.get(pk)}"


def fill(models: Any, kept: dict[str, dict[Any, dict[str, Any]]], seed: int) -> None:
    """Two rows of each table, those that others point to first; one where two cannot be told apart
    by what is made up here."""
    waiting, there = list(models), set[str]()
    while waiting:
        ready = [m for m in waiting if needs(m) <= there | {m.__name__}]
        assert ready, [m.__name__ for m in waiting]
        for model in ready:
            waiting.remove(model)
            there.add(model.__name__)
            for number in range(1 if model.__name__ == ONE else 2):
                with suppress(IntegrityError if number else ()), transaction.atomic():
                    row = model._base_manager.create(**values(model, f"{seed}-{number}"))
                    kept[model.__name__][row.pk] = model._base_manager.values().get(pk=row.pk)


def needs(model: Any) -> set[str]:
    fields = model._meta.concrete_fields
    return {f.related_model.__name__ for f in fields if f.is_relation and not f.null}


def values(model: Any, name: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in model._meta.concrete_fields:
        if field.primary_key and field.get_internal_type().endswith("AutoField"):
            continue
        if field.is_relation:
            if not field.null:
                fields[field.name] = pointed(field, model)
        elif field.choices:
            fields[field.name] = field.choices[0][0]
        else:
            kind = field.get_internal_type()
            fields[field.name] = SAID.get(kind, number := next(NUMBERS))
            if kind in ("DateField", "DateTimeField"):
                fields[field.name] += timedelta(days=number)
            if kind in ("CharField", "SlugField"):
                fields[field.name] = f"{name}-{field.name}"[: field.max_length]
    return fields


def pointed(field: Any, model: Any) -> Any:
    """The newest row, or for a one-to-one the newest that none points to yet."""
    rows = field.related_model._base_manager.order_by("-pk")
    if field.unique:
        rows = rows.exclude(pk__in=model._base_manager.values(field.attname))
    return rows.first()


if __name__ == "__main__":
    main()
