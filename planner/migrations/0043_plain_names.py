"""Rename tables and columns to terms of the glossary, and drop those that nothing uses any more.

The version before cannot work on the result: stop it before this migration.
"""

from django.db import migrations, models


def rename_counter(apps, schema_editor):
    """Keep the last number of active plans: a counter has the name of its model."""
    counters = apps.get_model("planner", "Counter").objects
    counters.filter(kind="planinforce").update(kind="activeplan")


class Migration(migrations.Migration):
    dependencies = [("planner", "0042_initial")]

    operations = [
        migrations.RenameModel("PlanInForce", "ActivePlan"),
        migrations.RunPython(rename_counter, migrations.RunPython.noop),
        migrations.RenameField("firing", "settled_at", "finished_at"),
        migrations.RenameField("outcome", "begun_at", "started_at"),
        migrations.RenameField("run", "removal_told_at", "removal_announced_at"),
        migrations.RenameField("secondfactor", "sealed", "encrypted_key"),
        migrations.RenameField("session", "begun_at", "created_at"),
        migrations.RenameField("session", "seen_at", "last_used_at"),
        migrations.RenameField("source", "read_to", "read_until"),
        migrations.RenameField("sourcereading", "what", "file_name"),
        migrations.RenameField("trace", "removal_told_at", "removal_announced_at"),
        migrations.AlterModelOptions("session", {"ordering": ["-last_used_at"]}),
        migrations.RemoveField("audithead", "sha256"),
        migrations.RemoveField("auditrecord", "previous"),
        migrations.RemoveField("auditrecord", "sha256"),
        migrations.RemoveField("session", "browser"),
        migrations.DeleteModel("AccountNotice"),
        migrations.DeleteModel("KnownBrowser"),
        # Tables of two apps that are no longer installed.
        migrations.RunSQL("DROP TABLE IF EXISTS authtoken_token", migrations.RunSQL.noop),
        migrations.RunSQL("DROP TABLE IF EXISTS django_session", migrations.RunSQL.noop),
        # Labels of choices.
        migrations.AlterField(
            model_name="apitoken",
            name="scope",
            field=models.CharField(
                choices=[("all", "Everything that I may do"), ("read", "Read-only")],
                default="all",
                max_length=8,
            ),
        ),
        migrations.AlterField(
            model_name="delivery",
            name="event",
            field=models.CharField(
                choices=[
                    ("proposal.opened", "A plan is proposed"),
                    ("review.requested", "A review is requested"),
                    ("mention", "Somebody mentions me"),
                    ("proposal.decided", "A proposal is approved, rejected or needs changes"),
                    ("plan.in-force", "The active plan changes"),
                    ("schedule.failed", "A scheduled plan failed or was missed"),
                    ("source.problem", "A live source has a problem"),
                    ("plan.drift", "Demand drift"),
                    ("data.removal", "Old runs or traces will be removed"),
                    ("digest", "The weekly digest"),
                    ("test", "A test message"),
                ],
                max_length=32,
            ),
        ),
        migrations.AlterField(
            model_name="proposal",
            name="state",
            field=models.CharField(
                choices=[
                    ("draft", "Draft"),
                    ("open", "Open"),
                    ("changes", "Changes requested"),
                    ("approved", "Approved"),
                    ("rejected", "Rejected"),
                    ("withdrawn", "Withdrawn"),
                ],
                default="open",
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="proposalentry",
            name="kind",
            field=models.CharField(
                choices=[
                    ("opened", "proposed it"),
                    ("ready", "marked it ready for review"),
                    ("requested", "requested a review"),
                    ("comment", "commented"),
                    ("approved", "approved"),
                    ("changes", "requested changes"),
                    ("amended", "amended it"),
                    ("rejected", "rejected it"),
                    ("withdrawn", "withdrew it"),
                    ("in-force", "activated it"),
                ],
                max_length=16,
            ),
        ),
        migrations.AlterField(
            model_name="run",
            name="kind",
            field=models.CharField(
                choices=[
                    ("ingest", "Ingest"),
                    ("forecast", "Forecast"),
                    ("plan", "Plan"),
                    ("simulate", "Simulate"),
                    ("compare", "Plan and compare"),
                    ("provision", "Operator-level provisioning"),
                    ("size", "Replica capacity"),
                    ("pd-ratio", "Prefill-decode ratio"),
                    ("pareto", "Two objectives"),
                    ("place", "Placement"),
                    ("outlook", "Cost by month"),
                    ("backtest", "Backtest of forecasters"),
                ],
                max_length=16,
            ),
        ),
    ]
