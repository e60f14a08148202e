"""Schedules, their firings and outcomes get a place for their workspace, filled by 0022."""

import django.db.models.deletion
from django.db import migrations, models

ROWS = ("schedule", "firing", "outcome")


def key():
    """Still without a value, and so without the current workspace as its default."""
    return models.ForeignKey(
        null=True,
        on_delete=django.db.models.deletion.CASCADE,
        related_name="+",
        to="planner.workspace",
    )


class Migration(migrations.Migration):
    dependencies = [("planner", "0020_workspace_of_each_row")]

    operations = [migrations.AddField(row, "workspace", key()) for row in ROWS]
