"""A version that serves goes on while the next one's migrations are applied before it starts: rows
that it writes without a new column are taken, and nothing that it reads is taken away."""

from importlib import import_module
from pathlib import Path

import pytest
from django.db import migrations, models
from django.db.models import NOT_PROVIDED

import planner.migrations as package

SINCE = 44  # 0043 needs a stop of the version before
TAKEN_AWAY = (
    migrations.RemoveField,
    migrations.RenameField,
    migrations.DeleteModel,
    migrations.RenameModel,
    migrations.AlterModelTable,
)
NAMES = sorted(path.stem for path in Path(package.__path__[0]).glob("[0-9]*.py"))


def stops(operation: migrations.operations.base.Operation) -> str:
    """Why the version before would fail beside this; "" where it would not."""
    if isinstance(operation, TAKEN_AWAY):
        return f"{operation.describe()}: the version before reads it. Take it away a version later"
    if isinstance(operation, migrations.AddField):
        field = operation.field
        kept = field.null or field.db_default is not NOT_PROVIDED or field.many_to_many
        return "" if kept else f"{operation.describe()}: give it null=True or a db_default"
    return ""


@pytest.mark.parametrize("name", [name for name in NAMES if int(name[:4]) >= SINCE])
def test_the_version_before_goes_on(name):
    module = import_module(f"planner.migrations.{name}")
    assert [why for operation in module.Migration.operations if (why := stops(operation))] == []


def test_what_would_stop_it_is_seen():
    plain = models.CharField(max_length=9, default="")
    kept = models.CharField(max_length=9, default="", db_default="")
    assert "db_default" in stops(migrations.AddField("run", "a", plain))
    assert stops(migrations.AddField("run", "a", kept)) == ""
    assert "a version later" in stops(migrations.RemoveField("run", "a"))
