"""What schedules there were are of the first workspace; their names are unique within one."""

import django.db.models.deletion
from django.db import migrations, models

import planner.models.workspace

ROWS = ("schedule", "firing", "outcome")


def fill(apps, schema_editor):
    main = apps.get_model("planner", "Workspace").objects.filter(slug="main").first()
    for row in ROWS:
        apps.get_model("planner", row).objects.filter(workspace=None).update(workspace=main)


def keyed(row):
    """The default is of the program alone, as in 0020."""

    def key(**default):
        return models.ForeignKey(
            on_delete=django.db.models.deletion.CASCADE,
            related_name="+",
            to="planner.workspace",
            **default,
        )

    current = planner.models.workspace.current_workspace_id
    return migrations.SeparateDatabaseAndState(
        database_operations=[migrations.AlterField(row, "workspace", key())],
        state_operations=[migrations.AlterField(row, "workspace", key(default=current))],
    )


class Migration(migrations.Migration):
    atomic = False  # rows are filled before their column is changed

    dependencies = [("planner", "0021_workspace_of_schedules")]

    operations = [
        migrations.RunPython(fill, migrations.RunPython.noop),
        *(keyed(row) for row in ROWS),
        migrations.AlterField("schedule", "name", models.CharField(max_length=120)),
        migrations.AddConstraint(
            "schedule",
            models.UniqueConstraint(fields=("workspace", "name"), name="schedule_name_once"),
        ),
    ]
