"""Every row belongs to a workspace; names are unique within it, and roles are memberships'."""

import django.db.models.deletion
from django.db import migrations, models

import planner.models.workspace

ROWS = (
    "apitoken",
    "calibration",
    "deploymentname",
    "owngpu",
    "ownmodel",
    "planinforce",
    "pricelist",
    "profile",
    "profileversion",
    "run",
    "scenario",
    "sweep",
    "trace",
)


def key(**default):
    return models.ForeignKey(
        on_delete=django.db.models.deletion.CASCADE,
        related_name="+",
        to="planner.workspace",
        **default,
    )


def keyed(row):
    """The default is of the program alone: a database that was asked for it while it fills the
    column would look for a current workspace."""
    current = planner.models.workspace.current_workspace_id
    return migrations.SeparateDatabaseAndState(
        database_operations=[migrations.AlterField(row, "workspace", key())],
        state_operations=[migrations.AlterField(row, "workspace", key(default=current))],
    )


def once(row, column, name):
    return migrations.AddConstraint(
        row, models.UniqueConstraint(fields=("workspace", column), name=name)
    )


def once_per_key(row, owner, name):
    return (
        migrations.RemoveConstraint(row, name),
        migrations.AddConstraint(
            row,
            models.UniqueConstraint(
                fields=("workspace", owner, "idempotency_key"),
                condition=models.Q(("idempotency_key", ""), _negated=True),
                name=name,
            ),
        ),
    )


class Migration(migrations.Migration):
    dependencies = [("planner", "0019_main_workspace")]

    operations = [
        *(keyed(row) for row in ROWS),
        *once_per_key("calibration", "owner", "calibration_once_per_key"),
        *once_per_key("profileversion", "created_by", "profile_version_once_per_key"),
        *once_per_key("run", "owner", "run_once_per_key"),
        migrations.RemoveConstraint("trace", "trace_once"),
        migrations.AddConstraint(
            "trace",
            models.UniqueConstraint(
                fields=("workspace", "sha256"),
                condition=models.Q(("state", "refused"), _negated=True),
                name="trace_once",
            ),
        ),
        migrations.AlterField("deploymentname", "rule", models.CharField(max_length=63)),
        migrations.AlterField("owngpu", "name", models.CharField(max_length=80)),
        migrations.AlterField("ownmodel", "name", models.CharField(max_length=80)),
        migrations.AlterField("pricelist", "name", models.CharField(max_length=80)),
        migrations.AlterField("profile", "name", models.CharField(max_length=80)),
        migrations.AlterField("scenario", "name", models.CharField(max_length=120)),
        migrations.AlterField("trace", "name", models.SlugField(max_length=120)),
        once("deploymentname", "rule", "deployment_rule_once"),
        once("owngpu", "name", "owngpu_name_once"),
        once("ownmodel", "name", "ownmodel_name_once"),
        once("pricelist", "name", "pricelist_name_once"),
        once("profile", "name", "profile_name_once"),
        once("scenario", "name", "scenario_name_once"),
        once("trace", "name", "trace_name_once"),
        migrations.AlterModelManagers("user", managers=[]),
        migrations.RemoveField("user", "role"),
    ]
