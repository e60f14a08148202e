"""Versions of scenarios, proposals with what is said of them, and the audit log."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


def kept(apps, schema_editor):
    """What every scenario is now, under the number it has: what it was before is not known."""
    version = apps.get_model("planner", "ScenarioVersion")
    for one in apps.get_model("planner", "Scenario").objects.all():
        version.objects.create(
            scenario=one,
            number=one.version,
            name=one.name,
            document=one.document,
            message="As it was when versions began to be kept" if one.version > 1 else "",
            author_id=one.owner_id,
        )
        version.objects.filter(scenario=one).update(created_at=one.updated_at)


class Migration(migrations.Migration):
    dependencies = [
        ("planner", "0013_tokens"),
    ]

    operations = [
        migrations.CreateModel(
            name="AuditHead",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.BigIntegerField(default=0)),
                ("sha256", models.CharField(blank=True, max_length=64)),
            ],
        ),
        migrations.CreateModel(
            name="AuditRecord",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.BigIntegerField(unique=True)),
                ("at", models.DateTimeField(db_index=True)),
                ("actor", models.CharField(max_length=200)),
                ("action", models.CharField(db_index=True, max_length=40)),
                ("key", models.CharField(blank=True, max_length=120)),
                ("name", models.CharField(blank=True, max_length=200)),
                ("details", models.TextField(default="{}")),
                ("previous", models.CharField(max_length=64)),
                ("sha256", models.CharField(max_length=64)),
            ],
            options={
                "ordering": ["-number"],
            },
        ),
        migrations.CreateModel(
            name="Proposal",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("title", models.CharField(max_length=160)),
                ("message", models.TextField(blank=True)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("draft", "Draft"),
                            ("open", "Open"),
                            ("changes", "Changes asked for"),
                            ("approved", "Approved"),
                            ("rejected", "Rejected"),
                            ("withdrawn", "Withdrawn"),
                        ],
                        default="open",
                        max_length=16,
                    ),
                ),
                ("rule", models.CharField(blank=True, max_length=200)),
                ("revision", models.PositiveIntegerField(default=1)),
                ("options", models.JSONField(default=dict)),
                ("policy", models.CharField(max_length=161)),
                ("usd_30d", models.FloatField(null=True)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("updated_at", models.DateTimeField(auto_now=True)),
                ("decided_at", models.DateTimeField(null=True)),
                (
                    "author",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "base",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="planner.planinforce",
                    ),
                ),
                (
                    "base_run",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="planner.run",
                    ),
                ),
                (
                    "reviewers",
                    models.ManyToManyField(related_name="+", to=settings.AUTH_USER_MODEL),
                ),
                (
                    "run",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="planner.run",
                    ),
                ),
                (
                    "scenario",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="planner.scenario",
                    ),
                ),
            ],
            options={
                "ordering": ["-pk"],
            },
        ),
        migrations.AddField(
            model_name="planinforce",
            name="proposal",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="plans",
                to="planner.proposal",
            ),
        ),
        migrations.CreateModel(
            name="ProposalEntry",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("opened", "proposed this"),
                            ("ready", "says that it is ready for review"),
                            ("requested", "asked for review"),
                            ("comment", "commented"),
                            ("approved", "approved"),
                            ("changes", "asked for changes"),
                            ("amended", "amended it"),
                            ("rejected", "rejected it"),
                            ("withdrawn", "withdrew it"),
                            ("in-force", "put it in force"),
                        ],
                        max_length=16,
                    ),
                ),
                ("revision", models.PositiveIntegerField()),
                ("rule", models.CharField(blank=True, max_length=200)),
                ("text", models.TextField(blank=True)),
                ("anchor", models.JSONField(default=dict)),
                ("at", models.DateTimeField()),
                (
                    "by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                ("mentions", models.ManyToManyField(related_name="+", to=settings.AUTH_USER_MODEL)),
                (
                    "proposal",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="entries",
                        to="planner.proposal",
                    ),
                ),
                (
                    "run",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="planner.run",
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
            },
        ),
        migrations.CreateModel(
            name="ReviewRules",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("approvals", models.PositiveSmallIntegerField(default=1)),
                ("self_approval", models.BooleanField(default=False)),
                ("admin_above_usd_30d", models.FloatField(blank=True, null=True)),
                ("required", models.BooleanField(default=False)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "by",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "review rules",
            },
        ),
        migrations.CreateModel(
            name="ScenarioVersion",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                ("name", models.CharField(max_length=120)),
                ("document", models.TextField()),
                ("message", models.CharField(blank=True, max_length=500)),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                (
                    "author",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
                (
                    "origin",
                    models.ForeignKey(
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="planner.scenarioversion",
                    ),
                ),
                (
                    "scenario",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="versions",
                        to="planner.scenario",
                    ),
                ),
            ],
            options={
                "ordering": ["scenario", "-number"],
            },
        ),
        migrations.AddField(
            model_name="proposal",
            name="version",
            field=models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="planner.scenarioversion",
            ),
        ),
        migrations.AddConstraint(
            model_name="scenarioversion",
            constraint=models.UniqueConstraint(
                fields=("scenario", "number"), name="scenario_version_once"
            ),
        ),
        migrations.AddIndex(
            model_name="proposal",
            index=models.Index(fields=["state"], name="planner_pro_state_e08700_idx"),
        ),
        migrations.RunPython(kept, migrations.RunPython.noop),
    ]
