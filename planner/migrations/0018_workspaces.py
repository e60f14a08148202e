"""Workspaces and who belongs to them; every row gets a place for its own, filled by 0019."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

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


def key():
    """Still without a value, and so without the current workspace as its default."""
    return models.ForeignKey(
        null=True,
        on_delete=django.db.models.deletion.CASCADE,
        related_name="+",
        to="planner.workspace",
    )


class Migration(migrations.Migration):
    dependencies = [("planner", "0017_schedules")]

    operations = [
        migrations.CreateModel(
            name="Workspace",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("name", models.CharField(max_length=80, unique=True)),
                ("slug", models.SlugField(max_length=40, unique=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
            ],
            options={"ordering": ["pk"]},
        ),
        migrations.CreateModel(
            name="Membership",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "role",
                    models.CharField(
                        choices=[
                            ("viewer", "Viewer: reads"),
                            ("planner", "Planner: uploads, edits and runs"),
                            ("approver", "Approver: also decides on what others propose"),
                            ("admin", "Admin: also removes what others made, and invites people"),
                        ],
                        default="viewer",
                        max_length=16,
                    ),
                ),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "user",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "workspace",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="memberships",
                        to="planner.workspace",
                    ),
                ),
            ],
            options={"ordering": ["workspace", "pk"]},
        ),
        migrations.AddConstraint(
            model_name="membership",
            constraint=models.UniqueConstraint(
                fields=("user", "workspace"), name="membership_once"
            ),
        ),
        *(migrations.AddField(model_name=row, name="workspace", field=key()) for row in ROWS),
    ]
