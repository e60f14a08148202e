"""Live sources belong to a workspace. None could be made before, so there is no row to be given one:
the key begins without a value, as the current workspace cannot be asked for here."""

import django.db.models.deletion
from django.db import migrations, models

import planner.models.workspace


def key(**more):
    return models.ForeignKey(
        on_delete=django.db.models.deletion.CASCADE,
        related_name="+",
        to="planner.workspace",
        **more,
    )


class Migration(migrations.Migration):
    dependencies = [("planner", "0023_notices")]

    operations = [
        migrations.AddField("source", "workspace", key(null=True)),
        migrations.SeparateDatabaseAndState(
            database_operations=[migrations.AlterField("source", "workspace", key())],
            state_operations=[
                migrations.AlterField(
                    "source",
                    "workspace",
                    key(default=planner.models.workspace.current_workspace_id),
                )
            ],
        ),
        migrations.AlterField("source", "name", models.SlugField(max_length=80)),
        migrations.AddConstraint(
            "source",
            models.UniqueConstraint(fields=("workspace", "name"), name="source_name_once"),
        ),
    ]
