"""Proposals and the rules of review belong to a workspace, records of the log name theirs; what is
in force is replayed beside what is proposed."""

import django.db.models.deletion
from django.db import migrations, models

from planner.models.workspace import MAIN

ROWS = ("proposal", "reviewrules")


def key():
    return models.ForeignKey(
        null=True,
        on_delete=django.db.models.deletion.CASCADE,
        related_name="+",
        to="planner.workspace",
    )


def gathered(apps, schema_editor):
    main = apps.get_model("planner", "Workspace").objects.get(slug=MAIN)
    for name in ROWS:
        apps.get_model("planner", name).objects.update(workspace=main)


class Migration(migrations.Migration):
    dependencies = [("planner", "0024_sources_of_workspaces")]

    operations = [
        migrations.AddField(
            model_name="proposal",
            name="replay",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="planner.run",
            ),
        ),
        migrations.AddField(
            model_name="auditrecord",
            name="workspace",
            field=models.CharField(blank=True, default="", max_length=40),
            preserve_default=False,
        ),
        *(migrations.AddField(model_name=row, name="workspace", field=key()) for row in ROWS),
        migrations.RunPython(gathered, migrations.RunPython.noop),
    ]
