"""Count attempts to sign in; forget notices about accounts, known browsers and sessions' browsers.

The version before serves while this is applied and still uses the two tables and the column. They
leave the models now and the database a version later. Until then no foreign key of the tables may
stop the removal of an account, and a session may be written without its browser.
"""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


def user_without_constraint(related_name: str) -> models.ForeignKey:
    return models.ForeignKey(
        on_delete=django.db.models.deletion.CASCADE,
        related_name=related_name,
        to=settings.AUTH_USER_MODEL,
        db_constraint=False,
    )


class Migration(migrations.Migration):
    dependencies = [("planner", "0040_run_parts")]

    operations = [
        migrations.CreateModel(
            name="AttemptWindow",
            fields=[
                ("key", models.CharField(max_length=64, primary_key=True, serialize=False)),
                ("moments", models.JSONField(default=list)),
                ("newest_at", models.DateTimeField(db_index=True)),
            ],
        ),
        migrations.AlterField("accountnotice", "user", user_without_constraint("account_notices")),
        migrations.AlterField("knownbrowser", "user", user_without_constraint("known_browsers")),
        migrations.AlterField(
            "session", "browser", models.CharField(blank=True, db_default="", max_length=80)
        ),
        migrations.RunSQL("DELETE FROM planner_accountnotice", migrations.RunSQL.noop),
        migrations.RunSQL("DELETE FROM planner_knownbrowser", migrations.RunSQL.noop),
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.DeleteModel("AccountNotice"),
                migrations.DeleteModel("KnownBrowser"),
                migrations.RemoveField("session", "browser"),
            ]
        ),
    ]
