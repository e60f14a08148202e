"""Rename tables and columns to terms of the glossary, and drop those that nothing uses any more.

The version before cannot work on the result: stop it before this migration.
"""

from django.db import migrations


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
    ]
