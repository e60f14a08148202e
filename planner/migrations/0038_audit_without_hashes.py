"""The audit log without its chain of hashes.

The version before still writes these columns while this migration is applied. So they stay in the
database with a default, and a later version drops them.
"""

from django.db import migrations, models

COLUMNS = (("auditrecord", "previous"), ("auditrecord", "sha256"), ("audithead", "sha256"))


class Migration(migrations.Migration):
    dependencies = [("planner", "0037_retention")]

    operations = [
        migrations.SeparateDatabaseAndState(
            database_operations=[
                migrations.AlterField(
                    model, name, models.CharField(max_length=64, default="", db_default="")
                )
                for model, name in COLUMNS
            ],
            state_operations=[migrations.RemoveField(model, name) for model, name in COLUMNS],
        )
    ]
