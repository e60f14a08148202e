"""Add the time zones of users and workspaces."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("planner", "0043_plain_names"),
    ]

    operations = [
        migrations.AddField(
            model_name="user",
            name="time_zone",
            field=models.CharField(blank=True, db_default="", default="", max_length=64),
        ),
        migrations.AddField(
            model_name="workspace",
            name="time_zone",
            field=models.CharField(db_default="UTC", default="UTC", max_length=64),
        ),
    ]
