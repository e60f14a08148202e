"""Live sources belong to a workspace; what there were are of the first. The key begins without a
value, as the current workspace cannot be asked for here."""

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


def fill(apps, schema_editor):
    main = apps.get_model("planner", "Workspace").objects.filter(slug="main").first()
    apps.get_model("planner", "Source").objects.filter(workspace=None).update(workspace=main)


class Migration(migrations.Migration):
    atomic = False  # rows are filled before their column is changed

    dependencies = [("planner", "0023_notices")]

    operations = [
        migrations.AddField("source", "workspace", key(null=True)),
        migrations.RunPython(fill, migrations.RunPython.noop),
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
