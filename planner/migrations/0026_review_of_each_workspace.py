"""Every proposal has its workspace, and each workspace one set of rules."""

import django.db.models.deletion
from django.db import migrations, models

import planner.models.workspace


def key(**default):
    return models.ForeignKey(
        on_delete=django.db.models.deletion.CASCADE,
        related_name="+",
        to="planner.workspace",
        **default,
    )


def keyed(row):
    """The default is of the program alone (see 0020)."""
    current = planner.models.workspace.current_workspace_id
    return migrations.SeparateDatabaseAndState(
        database_operations=[migrations.AlterField(row, "workspace", key())],
        state_operations=[migrations.AlterField(row, "workspace", key(default=current))],
    )


class Migration(migrations.Migration):
    dependencies = [("planner", "0025_proposal_replay")]

    operations = [
        keyed("proposal"),
        keyed("reviewrules"),
        migrations.AddConstraint(
            "reviewrules",
            models.UniqueConstraint(fields=("workspace",), name="review_rules_once"),
        ),
    ]
